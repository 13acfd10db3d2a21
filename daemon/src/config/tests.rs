use super::*;

#[test]
fn an_empty_file_is_the_default() {
    assert_eq!(Config::parse(""), Ok(Config::default()));
}

#[test]
fn the_printed_default_reads_back_as_the_default() {
    let printed = toml::to_string(&Config::default()).unwrap();
    assert_eq!(Config::parse(&printed), Ok(Config::default()));
}

#[test]
fn the_shipped_file_is_the_default_explained() {
    let shipped = include_str!("../../../systemd/brigd.toml");
    assert_eq!(Config::parse(shipped), Ok(Config::default()));
    let printed: toml::Table = toml::to_string(&Config::default()).unwrap().parse().unwrap();
    let shipped: toml::Table = shipped.parse().unwrap();
    assert_eq!(keys(&shipped), keys(&printed));
}

/// All keys with those of the tables below them; of a list of tables, those of any.
fn keys(table: &toml::Table) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (key, value) in table {
        found.insert(key.clone());
        let below = match value {
            toml::Value::Table(table) => keys(table),
            toml::Value::Array(list) => list.iter().filter_map(toml::Value::as_table).flat_map(keys).collect(),
            _ => BTreeSet::new(),
        };
        found.extend(below.into_iter().map(|below| format!("{key}.{below}")));
    }
    found
}

#[test]
fn root_and_the_admin_group_may_do_everything_and_the_client_group_may_run() {
    let shipped: Vec<_> = Config::default()
        .clients
        .iter()
        .map(|c| (c.uid, c.group.clone(), c.roles.len()))
        .collect();
    let expected = vec![
        (Some(0), None, 4),
        (None, Some("brig-admin".to_owned()), 4),
        (None, Some("brig-clients".to_owned()), 1),
    ];
    assert_eq!(shipped, expected);
}

#[test]
fn unknown_keys_are_errors_at_every_level() {
    for text in [
        "sokcet = \"/x\"",
        "[limits]\nruning = 1",
        "[[client]]\nuid = 0\nrole = []",
    ] {
        assert!(Config::parse(text).unwrap_err().contains("unknown field"), "{text}");
    }
}

#[test]
fn a_value_that_is_not_accepted_is_named_with_its_key_and_what_would_be() {
    let long = format!("/{}", "x".repeat(120));
    for (text, expected) in [
        ("[limits]\nqueue = 0", "limits.queue: 0 is not in 1 to 100000"),
        (
            "[limits]\nsessions = 10001",
            "limits.sessions: 10001 is not in 1 to 10000",
        ),
        ("[limits]\ndrain = \"2h\"", "limits.drain: 2h is not in 0 to 1h"),
        (
            "[artifacts]\nreview = \"31d\"",
            "artifacts.review: 31d is not in 1s to 30d",
        ),
        (
            "[artifacts.s3]\nregion = \"x\"",
            "artifacts.s3.bucket: names no bucket, though other keys of artifacts.s3 are set; name it, or leave them out",
        ),
        (
            "[artifacts.s3]\nbucket = \"b\"\nregion = \"x\"\ncredentials = \"c\"",
            "artifacts.s3.credentials: \"c\" is not an absolute path",
        ),
        (
            "[[client]]\ntenant = \"a\"",
            "client[0]: neither uid nor group; give one of them",
        ),
        (
            "[[client]]\nuid = 1\ngroup = \"a\"",
            "client[0]: both uid = 1 and group = \"a\"; give one of them",
        ),
        ("state = \"var\"", "state: \"var\" is not an absolute path"),
        ("[inputs]\nuploads = 0", "inputs.uploads: 0 is not in 1 to 1000"),
        ("[inputs]\nsize = 0", "inputs.size: 0 is not in 1 to 1024G"),
        (
            "[inputs]\ntenant_bytes = \"1M\"",
            "inputs.tenant_bytes: 1M has no place for a file of inputs.size, 1G",
        ),
        (
            "[inputs]\nretention = \"2d\"\nretention_max = \"1d\"",
            "inputs.retention: 2d is not in 1ms to 1d, inputs.retention_max",
        ),
        (
            "[inputs]\nretention_max = \"91d\"",
            "inputs.retention_max: 91d is not in 1ms to 90d",
        ),
        (
            "[links]\nlisten = \"192.0.2.1:80\"",
            "links.listen: 192.0.2.1:80 is no loopback address, and nothing is encrypted there: listen at 127.0.0.1 \
             behind a server that encrypts, or set links.unsafe_any_address",
        ),
        (
            "[links]\nlisten = \"/run/l\"",
            "links.public: is empty, and nobody can follow a link to links.listen, /run/l; give the URL of the server in \
             front of it",
        ),
        (
            "[links]\nlisten = \"0.0.0.0:80\"\nunsafe_any_address = true",
            "links.public: is empty, and nobody can follow a link to links.listen, 0.0.0.0:80; give the URL of the server \
             in front of it",
        ),
        (
            "[links]\nlifetime_max = \"8d\"",
            "links.lifetime_max: 8d is not in 1s to 7d",
        ),
        (
            "[links]\nlifetime = \"2h\"",
            "links.lifetime: 2h is not in 1s to 1h, links.lifetime_max",
        ),
        ("[links]\nconnections = 0", "links.connections: 0 is not in 1 to 10000"),
        ("[pool]\nsessions = 1001", "pool.sessions: 1001 is not in 0 to 1000"),
        ("[pool]\nidle = 0", "pool.idle: 0s is not in 1s to 1d"),
        ("[pool]\nrotate = 59", "pool.rotate: 59s is not in 1m to 7d"),
        (
            "[pool]\nsessions = 1\nready = [{ policy = \"data\" }, { policy = \"data\", template = \"base\" }]",
            "pool.ready: takes 2 sessions (kinds: 2, tenants: 1), more than pool.sessions, 1",
        ),
        (
            "[pool]\nready = [{ policy = \"data\" }, { policy = \"data\", contexts = true }]",
            "pool.ready[1]: is what pool.ready[0] is",
        ),
        ("policies = []", "policies: names no directory; at least one is needed"),
    ] {
        assert_eq!(Config::parse(text), Err(expected.to_owned()), "{text}");
    }
    let error = Config::parse(&format!("socket = \"{long}\"")).unwrap_err();
    assert!(
        error.starts_with("socket: /xxx") && error.contains("107 bytes, not 125"),
        "{error}"
    );
}

#[test]
fn a_value_of_another_type_is_shown_with_its_line_and_what_is_accepted() {
    for (text, parts) in [
        ("socket_mode = \"rw\"", ["socket_mode = \"rw\"", "octal number"]),
        (
            "log = \"syslog\"",
            ["log = \"syslog\"", "`auto`, `text`, `json`, `journal`"],
        ),
        (
            "[[client]]\nuid = 0\nroles = [\"root\"]",
            ["roles = [\"root\"]", "`runner`, `reviewer`, `auditor`, `operator`"],
        ),
        ("[limits]\ndrain = \"soon\"", ["drain = \"soon\"", "a span of time"]),
        (
            "[pool]\nshare = \"nobody\"",
            ["share = \"nobody\"", "`tenant`, `class`, `all`"],
        ),
        (
            "[pool]\nready = [\"data\"]",
            ["ready = [\"data\"]", "expected struct Ready"],
        ),
    ] {
        let error = Config::parse(text).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{part} in {error}");
        }
    }
}

#[test]
fn all_problems_are_told_at_once() {
    let error = Config::parse("state = \"var\"\n[limits]\nqueue = 0\nrunning = 0").unwrap_err();
    assert_eq!(error.lines().count(), 3, "{error}");
}

#[test]
fn a_group_that_the_host_lacks_is_named() {
    let error = Config::parse("socket_group = \"no-such-group\"\n[[client]]\ngroup = \"nor-this\"")
        .unwrap()
        .check_host()
        .unwrap_err();
    let lines: Vec<_> = error.lines().collect();
    assert!(
        lines[0].starts_with("socket_group: there is no group \"no-such-group\""),
        "{error}"
    );
    assert!(
        lines[1].starts_with("client[0].group: there is no group \"nor-this\""),
        "{error}"
    );
    let shipped = Config {
        socket_group: String::new(),
        ..Config::default()
    };
    assert_eq!(shipped.check_host(), Ok(()));
}

#[test]
fn standalone_keeps_everything_in_its_directory() {
    let options = <Options as clap::Parser>::parse_from(["brigd", "--standalone", "/x", "--images", "/i"]);
    let config = Config::load(&options).unwrap();
    assert_eq!(config.socket, Path::new("/x/brigd.sock"));
    assert_eq!(config.ledger(), Path::new("/x/ledger.db"));
    assert_eq!(config.spool(), Path::new("/x/spool"));
    assert_eq!(config.input_records(), Path::new("/x/inputs"));
    assert_eq!(config.images, Path::new("/i"));
    assert_eq!(config.pool.sessions, 0);
}

#[test]
fn links_begin_with_a_url_and_nothing_else() {
    let read = |url: &str| Config::parse(&format!("[links]\npublic = {url:?}"));
    for url in [
        "https://files.example.org",
        "http://[::1]:80/a/b/",
        "https://h:8443/x",
        "",
    ] {
        assert_eq!(read(url).unwrap().links.public, url);
    }
    let long = format!("https://h/{}", "x".repeat(1024));
    for url in [
        "files.example.org",
        "ftp://h",
        "https://",
        "https:///a",
        "https://user@h",
        "https://h/?a",
        "https://h/#a",
        "https://h/a b",
        "https://h:x",
        &long,
    ] {
        let error = read(url).unwrap_err();
        assert!(
            error.starts_with("links.public: ") && error.contains("no beginning of a URL"),
            "{error}"
        );
    }
    let elsewhere = "[links]\nlisten = \"192.0.2.1:80\"\nunsafe_any_address = true";
    assert!(Config::parse(elsewhere).is_ok());
}
