//! Policies as people write them, right and wrong.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::Path;

use super::*;
use crate::api::Refusal;

const SMALLEST: &str = "template = \"base\"\n[syscalls]\ngroups = [\"base\"]\n";

fn shipped_folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../policies")
}

fn shipped(name: &str) -> Policy {
    PolicySet::load(&[shipped_folder()], Trust::Any)
        .unwrap()
        .get(name)
        .unwrap()
        .clone()
}

/// What is wrong with the smallest policy and some lines more.
fn wrong(more: &str) -> String {
    let problems = Policy::parse("x", &format!("{SMALLEST}{more}")).unwrap_err();
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

/// A folder with files.
fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
        fs::set_permissions(folder.path().join(name), Permissions::from_mode(0o644)).unwrap();
    }
    folder
}

#[test]
fn what_a_policy_leaves_out_has_the_documented_default() {
    let policy = Policy::parse("x", SMALLEST).unwrap();
    assert_eq!(policy.limits, Limits::default());
    assert_eq!(policy.artifacts.other.handling, Handling::Review);
    assert_eq!(policy.files.download, Download::Artifacts);
    assert_eq!((policy.hash.len(), policy.short_hash().len()), (64, 12));
    assert_eq!(policy.id(), format!("x@{}", policy.short_hash()));
}

#[test]
fn the_data_policy_writes_out_the_defaults() {
    let data = shipped("data");
    assert_eq!(data.limits, Limits::default());
    assert_eq!(data.retention, Retention::default());
    assert_eq!(
        (data.template.as_str(), shipped("strict").template.as_str()),
        ("data", "base")
    );
}

#[test]
fn the_artifact_classes_of_the_data_policy_are_the_contract() {
    let data = shipped("data");
    let row = |class: Class| {
        let rule = data.artifacts.rule(class);
        let bytes = |size: Option<ByteSize>| size.map(|size| size.to_string()).unwrap_or_default();
        (
            rule.handling.name(),
            rule.extensions.join(" "),
            bytes(rule.max_bytes),
            bytes(rule.preview_max_bytes),
        )
    };
    let text = |handling, extensions: &str, max: &str, preview: &str| {
        (handling, extensions.to_owned(), max.to_owned(), preview.to_owned())
    };
    assert_eq!(
        Class::ALL.map(row),
        [
            text("preview", ".png .jpg .jpeg .webp .svg", "10M", ""),
            text("download", ".csv .json .xlsx .parquet", "", ""),
            text("preview", ".txt .md .pdf", "", "256K"),
            text("review", "", "", ""),
            text("review", "", "", ""),
            text("review", "", "", ""),
            text("review", "", "", ""),
        ]
    );
}

#[test]
fn strict_is_nowhere_wider_than_data() {
    let (data, strict) = (shipped("data"), shipped("strict"));
    let most = |policy: &Policy| {
        let limits = &policy.limits;
        [
            limits.timeout.max.millis(),
            limits.memory.max.bytes(),
            limits.cpus.max.millis(),
            limits.disk.max.bytes(),
            limits.inodes.max,
            limits.pids.max,
            limits.open_files.max,
            limits.output_bytes.max.bytes(),
            limits.session.max_age.max.millis(),
            limits.artifact_bytes.bytes(),
        ]
    };
    assert!(
        most(&strict)
            .iter()
            .zip(most(&data))
            .all(|(strict, data)| *strict < data)
    );
    assert!(
        strict
            .syscalls
            .groups
            .iter()
            .all(|group| data.syscalls.groups.contains(group))
    );
}

#[test]
fn limits_of_disks_are_optional_and_never_empty() {
    let parsed = Policy::parse(
        "x",
        &format!("{SMALLEST}[limits]\nio = {{ read = \"1M\", write_ops = 20 }}\n"),
    );
    let io = IoLimits {
        read: Some(ByteSize::from_mib(1)),
        write_ops: Some(20),
        ..IoLimits::default()
    };
    assert_eq!(parsed.unwrap().limits.io, Some(io));
    assert_eq!(
        wrong("[limits]\nio = {}\n"),
        "x.toml:5: limits.io: limits nothing; accepted: read, write (bytes per second), read_ops, write_ops"
    );
    assert!(wrong("[limits]\nio = { read_ops = 0 }\n").contains("limits.io.read_ops: 0 is not a limit"));
    assert!(wrong("[limits]\nio = { reads = 1 }\n").contains("unknown field `reads`"));
}

#[test]
fn unknown_keys_and_values_are_errors_with_a_suggestion() {
    assert_eq!(
        wrong("[limits]\ntiemout = \"3s\"\n")
            .split(", expected")
            .next()
            .unwrap(),
        "x.toml:5: limits.tiemout: unknown field `tiemout`"
    );
    assert!(wrong("[limits]\ntiemout = \"3s\"\n").ends_with("; did you mean `timeout`?"));
    assert!(wrong("[limits]\ntimeout = { default = \"1s\", maximum = \"2s\" }\n").contains("unknown field `maximum`"));
    assert!(wrong("[limit]\n").contains("did you mean `limits`?"));
    assert_eq!(
        wrong("[files]\ndownload = \"artifcats\"\n"),
        "x.toml:5: files.download: unknown variant `artifcats`, expected one of `any`, `artifacts`, `none`; \
         did you mean `artifacts`?"
    );
    assert!(wrong("[artifacts.picture]\n").contains("artifacts.picture: unknown field `picture`"));
    assert!(
        Policy::parse("x", "template = \"base\"\n").unwrap_err()[0]
            .message
            .contains("missing field `syscalls`")
    );
    assert!(wrong("[limits\n").starts_with("x.toml:4: "));
}

#[test]
fn values_of_the_wrong_kind_say_what_is_accepted() {
    assert_eq!(
        wrong("[limits]\nmemory = { default = \"512MB\", max = \"2G\" }\n"),
        "x.toml:5: limits.memory.default: \"512MB\" is not a size: a whole number of bytes, or one with K, M or G \
         (powers of 1024), such as 512M"
    );
    assert!(wrong("[limits]\ntimeout = true\n").contains("one value, or { default = .., max = .. }"));
    assert!(wrong("[limits]\npids = -1\n").contains("limits.pids"));
}

#[test]
fn zero_and_a_default_above_the_maximum_are_refused_all_at_once() {
    let lines = "[limits]\ntimeout = { default = \"10m\", max = \"5m\" }\nmemory = 0\npids = 0\nartifacts = 0\n\
                 [retention]\ncode = \"0d\"\n";
    assert_eq!(
        wrong(lines),
        "x.toml:5: limits.timeout.default: 10m is above 5m, the maximum beside it\n\
         x.toml:6: limits.memory.default: 0 is not a limit; leave the key out for the default\n\
         x.toml:7: limits.pids.default: 0 is not a limit; leave the key out for the default\n\
         x.toml:8: limits.artifacts: 0 is not a limit; leave the key out for the default\n\
         x.toml:10: retention.code: 0 is not a limit; leave the key out for the default"
    );
    assert!(wrong("[limits]\ncode_bytes = \"2M\"\n").contains("2M is above 1M"));
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let refused = |lines: &str, key: &str, value: &str| {
        let told = wrong(lines);
        assert!(
            told.contains(&format!(
                "{key}: \"{value}\" is not supported by this version; accepted: "
            )),
            "{told}"
        );
    };
    refused("[network]\nmode = \"egress\"\n", "network.mode", "egress");
    refused("[packages]\nmode = \"index\"\n", "packages.mode", "index");
    refused("[packages]\nmode = \"allow_list\"\n", "packages.mode", "allow_list");
}

#[test]
fn a_reviewer_has_a_day_at_most_to_decide() {
    let policy = |lines: &str| Policy::parse("x", &format!("{SMALLEST}{lines}")).map(|policy| policy.rules.execution);
    let day = Span::from_secs(24 * 60 * 60);
    assert_eq!(
        policy("[execution]\nreview = \"required\"\n").unwrap(),
        Execution {
            review: Review::Required,
            review_timeout: day
        }
    );
    assert_eq!(
        policy("[execution]\nreview_timeout = \"5m\"\n").unwrap().review_timeout,
        Span::from_secs(300)
    );
    let told = wrong("[execution]\nreview_timeout = \"25h\"\n");
    assert!(told.contains("execution.review_timeout: 25h is above "), "{told}");
    let told = wrong("[execution]\nreview_timeout = 0\n");
    assert!(told.contains("execution.review_timeout: 0 is not a limit"), "{told}");
}

#[test]
fn a_scanner_is_a_program_by_its_path_under_a_policy_that_there_is() {
    let text = "[artifacts.scanner]\npolicy = \"Scan\"\ncommand = [\"clamscan\", \"a\\u0000b\"]\nfound = \"drop\"\n";
    assert!(wrong(text).contains("artifacts.scanner.found: unknown variant `drop`, expected `review` or `refuse`"));
    let text = text.replace("found = \"drop\"\n", "");
    let told = wrong(&text);
    for problem in [
        "artifacts.scanner.policy: \"Scan\" can't name a policy",
        "artifacts.scanner.command[0]: \"clamscan\" is no program by its path; accepted: \"/usr/bin/...\"",
        "artifacts.scanner.command[1]: accepted: 64 parts of 1024 bytes each, without NUL",
    ] {
        assert!(told.contains(problem), "{problem} is not in {told}");
    }
    assert!(
        wrong("[artifacts.scanner]\npolicy = \"scan\"\ncommand = []\n").contains("artifacts.scanner.command: is empty")
    );
    let folder = tempfile::tempdir().unwrap();
    let head = "template = \"base\"\n[syscalls]\ngroups = [\"base\"]\n";
    let scanned = format!("{head}[artifacts.scanner]\npolicy = \"scan\"\ncommand = [\"/bin/true\"]\n");
    std::fs::write(folder.path().join("data.toml"), scanned).unwrap();
    let load = || PolicySet::load(&[folder.path().to_owned()], Trust::Any);
    let missing = "data.toml: artifacts.scanner.policy: there is no policy \"scan\"; there are: data";
    assert!(
        load().unwrap_err().to_string().contains(missing),
        "{}",
        load().unwrap_err()
    );
    std::fs::write(folder.path().join("scan.toml"), head).unwrap();
    assert_eq!(load().unwrap().iter().count(), 2);
}

#[test]
fn artifact_rules_that_contradict_each_other_are_refused() {
    let told = wrong(
        "[artifacts.chart]\nextensions = [\"png\", \".PNG\", \".a\"]\nmax_bytes = \"1G\"\n\
         [artifacts.data]\nextensions = [\".a\"]\npreview_max_bytes = \"1K\"\n",
    );
    assert_eq!(
        told,
        "x.toml:5: artifacts.chart.extensions[0]: \"png\" is not an ending: a dot, then lower-case letters and digits\n\
         x.toml:5: artifacts.chart.extensions[1]: \".PNG\" is not an ending: a dot, then lower-case letters and digits\n\
         x.toml:6: artifacts.chart.max_bytes: 1G is above 50M, limits.artifact_bytes\n\
         x.toml:8: artifacts.data.extensions[0]: \".a\" is also an ending of chart\n\
         x.toml:9: artifacts.data.preview_max_bytes: has no effect with handling = \"review\""
    );
}

#[test]
fn names_patterns_and_groups_are_checked() {
    assert!(wrong("[environment]\nallow = [\"TZ\", \"LD_PRELOAD\"]\n").starts_with("x.toml:5: environment.allow[1]: "));
    let told = Policy::parse("X/y", "template = \"../x\"\n[syscalls]\ngroups = []\n").unwrap_err();
    assert_eq!(
        told.iter().map(|problem| problem.key.as_str()).collect::<Vec<_>>(),
        ["", "template", "syscalls.groups"]
    );
}

#[test]
fn absent_is_the_default_zero_an_error_and_too_much_is_clamped_and_told() {
    let data = shipped("data");
    let (resolved, clamped) = data.resolve(&RequestedLimits::default()).unwrap();
    assert_eq!(
        (resolved.timeout_ms, resolved.memory_bytes, resolved.cpu_millis),
        (30_000, 512 << 20, 1000)
    );
    assert_eq!(
        (resolved.pids, resolved.output_bytes, resolved.max_age_ms),
        (128, 8 << 20, 3_600_000)
    );
    assert_eq!(clamped, []);
    let asked = RequestedLimits {
        timeout_ms: Some(600_000),
        memory_bytes: Some(1 << 30),
        pids: Some(1000),
        ..RequestedLimits::default()
    };
    let (resolved, clamped) = data.resolve(&asked).unwrap();
    assert_eq!(
        (resolved.timeout_ms, resolved.memory_bytes, resolved.pids),
        (300_000, 1 << 30, 128)
    );
    assert_eq!(
        clamped,
        [
            Clamped {
                field: "timeout_ms".into(),
                asked: 600_000,
                given: 300_000
            },
            Clamped {
                field: "pids".into(),
                asked: 1000,
                given: 128
            }
        ]
    );
    let zero = RequestedLimits {
        disk_bytes: Some(0),
        ..RequestedLimits::default()
    };
    assert_eq!(
        data.resolve(&zero).unwrap_err().to_string(),
        "disk_bytes: 0 is not a limit; leave it out for the default of the policy"
    );
}

#[test]
fn the_jailer_refuses_what_is_above_the_policy_or_the_ceilings() {
    let data = shipped("data");
    let quantities = data.resolve(&RequestedLimits::default()).unwrap().0.quantities();
    let check = |ceilings: &Ceilings, change: &dyn Fn(&mut crate::api::Quantities)| {
        let mut changed = quantities;
        change(&mut changed);
        match check_quantities(&data, ceilings, &changed) {
            Ok(()) => "fine".to_owned(),
            Err(Refusal::Invalid { field, message }) => format!("{field}: {message}"),
            Err(other) => other.to_string(),
        }
    };
    let ceilings = Ceilings::default();
    assert_eq!(check(&ceilings, &|_| {}), "fine");
    assert_eq!(
        check(&ceilings, &|q| q.pids = 129),
        "pids: 129 is above 128, the maximum of policy data"
    );
    assert_eq!(check(&ceilings, &|q| q.inodes = 0), "inodes: 0 is never a limit");
    assert!(check(&ceilings, &|q| q.memory_bytes = u64::MAX).starts_with("memory_bytes: "));
    let low = Ceilings {
        cpus: Cpus::from_millis(500),
        ..Ceilings::default()
    };
    assert_eq!(
        check(&low, &|_| {}),
        "cpu_millis: 1000 is above 500, the ceiling of this host (ceilings.toml)"
    );
    assert!(check_timeout(&data, 300_000).is_ok());
    assert!(check_timeout(&data, 300_001).is_err());
    assert!(check_timeout(&data, 0).is_err());
}

#[test]
fn the_example_of_ceilings_shows_every_key_with_its_default() {
    let path = shipped_folder().join("ceilings.toml");
    let text = fs::read_to_string(&path).unwrap();
    assert_eq!(Ceilings::parse(&path, &text).unwrap(), Ceilings::default());
    let keys = text.lines().filter(|line| line.contains(" = ")).count();
    assert_eq!(
        keys,
        serde_json::to_value(Ceilings::default())
            .unwrap()
            .as_object()
            .unwrap()
            .len()
    );
    assert!(
        Ceilings::parse(&path, "pids = 0").unwrap_err()[0]
            .to_string()
            .contains(":1: pids: 0 is not a limit")
    );
    assert_eq!(
        Ceilings::load(Path::new("/nonexistent/ceilings.toml"), Trust::RootOwned).unwrap(),
        Ceilings::default()
    );
}

#[test]
fn the_readme_names_every_key_of_a_policy() {
    let readme = fs::read_to_string(shipped_folder().join("README.md")).unwrap();
    let limits = serde_json::to_value(Limits::default()).unwrap();
    let missing: Vec<_> = limits
        .as_object()
        .unwrap()
        .keys()
        .filter(|key| !readme.contains(key.as_str()))
        .collect();
    assert_eq!(missing, Vec::<&String>::new());
}

#[test]
fn a_later_folder_replaces_a_policy_whole() {
    let other = SMALLEST.replace("base\"\n[", "other\"\n[");
    let (first, second) = (
        folder(&[("a.toml", SMALLEST), ("b.toml", SMALLEST)]),
        folder(&[("b.toml", &other)]),
    );
    let folders = [
        first.path().to_owned(),
        second.path().to_owned(),
        "/nonexistent/policies".into(),
    ];
    let set = PolicySet::load(&folders, Trust::Any).unwrap();
    assert_eq!(set.names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(set.get("b").unwrap().template, "other");
    assert_eq!(
        set.get("aa").unwrap_err().to_string(),
        "no policy named \"aa\", did you mean \"a\"?; there are: a, b"
    );
}

#[test]
fn one_bad_file_fails_the_set_and_no_file_at_all_too() {
    let bad = folder(&[("a.toml", SMALLEST), ("b.toml", "template = 3")]);
    let error = PolicySet::load(&[bad.path().to_owned()], Trust::Any)
        .unwrap_err()
        .to_string();
    assert!(error.contains("b.toml:1: template: "), "{error}");
    let none = folder(&[]);
    let error = PolicySet::load(&[none.path().to_owned()], Trust::Any)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("no policy found in "), "{error}");
}

#[test]
fn files_that_others_can_change_are_not_trusted() {
    assert!(
        rustix::process::geteuid().is_root(),
        "this test gives files away and needs root"
    );
    let load = |folder: &Path| match PolicySet::load(&[folder.to_owned()], Trust::RootOwned) {
        Ok(_) => "trusted".to_owned(),
        Err(LoadError::Untrusted { path, why }) => format!("{}: {why}", path.file_name().unwrap().display()),
        Err(other) => other.to_string(),
    };
    let place = folder(&[("a.toml", SMALLEST)]);
    let (path, file) = (place.path(), place.path().join("a.toml"));
    assert_eq!(load(path), "trusted");
    fs::set_permissions(&file, Permissions::from_mode(0o664)).unwrap();
    assert_eq!(load(path), "a.toml: writable by group or others (mode 664)");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    chown(&file, Some(12345), None).unwrap();
    assert_eq!(load(path), "a.toml: owned by uid 12345");
    chown(&file, Some(0), None).unwrap();
    let name = path.file_name().unwrap().display().to_string();
    fs::set_permissions(path, Permissions::from_mode(0o1777)).unwrap();
    assert_eq!(load(path), format!("{name}: writable by group or others (mode 1777)"));
    fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    // A link that leads to another's folder is followed, and the folder looked at.
    let elsewhere = folder(&[("a.toml", SMALLEST)]);
    chown(elsewhere.path(), Some(12345), None).unwrap();
    fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink(elsewhere.path().join("a.toml"), &file).unwrap();
    assert!(load(path).ends_with(": owned by uid 12345"));
}

#[test]
fn a_policy_file_is_checked_with_its_syscall_groups() {
    let summary = check_file(&shipped_folder().join("data.toml")).unwrap();
    assert_eq!(summary.policy.name, "data");
    assert!(summary.filter_instructions > 100);
    let place = folder(&[("x.toml", &SMALLEST.replace("[\"base\"]", "[\"bsae\"]"))]);
    std::os::unix::fs::symlink(shipped_folder().join("syscalls"), place.path().join("syscalls")).unwrap();
    let told = check_file(&place.path().join("x.toml")).unwrap_err()[0].to_string();
    assert!(
        told.contains("x.toml:3: syscalls.groups: no syscall group named \"bsae\", did you mean \"base\"?"),
        "{told}"
    );
    assert!(
        check_file(&place.path().join("y.toml")).unwrap_err()[0]
            .message
            .starts_with("No such file")
    );
}
