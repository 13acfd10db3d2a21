//! What can be seen and changed in the file system of a jail.

use std::process::Command;

use brig_proto::v1::ExecutionSpec;
use brig_tests::spec::{command, sh};
use brig_tests::{daemon, host};

#[test]
fn only_harmless_devices_are_there() {
    let daemon = daemon!();
    let text = daemon.stdout(sh(
        "find /dev -type c -o -type b | sort | tr '\\n' ' '; ls /sys 2>/dev/null | wc -l",
    ));
    assert_eq!(
        text,
        "/dev/full /dev/null /dev/pts/ptmx /dev/random /dev/tty /dev/urandom /dev/zero 0\n"
    );
}

#[test]
fn the_rootfs_can_not_be_written_and_stays_as_it_is() {
    let daemon = daemon!();
    let image = host::Places::find().images.join("base/tree");
    let sums = || {
        let files = [
            "etc/passwd",
            "usr/bin/env",
            "etc/ld.so.cache",
            "usr/lib/python3.11/os.py",
        ];
        let output = Command::new("sha256sum")
            .args(files)
            .current_dir(&image)
            .output()
            .unwrap();
        assert!(output.status.success());
        output.stdout
    };
    let before = sums();
    let script = r#"
for f in /etc/passwd /usr/bin/env /etc/ld.so.cache /usr/lib/python3.11/os.py; do
    (echo x >>$f) 2>/dev/null && echo wrote $f
    rm -f $f 2>/dev/null && echo removed $f
    mv $f /tmp/x 2>/dev/null && [ ! -e $f ] && echo moved $f
    chmod 777 $f 2>/dev/null && echo changed $f
    ln $f /tmp/hard 2>/dev/null && echo linked $f
    touch $f 2>/dev/null && echo touched $f
done
for d in / /etc /usr /usr/bin /usr/lib/brig /var /run /opt /dev /proc /home; do
    mkdir $d/new 2>/dev/null && echo made $d/new
done
true
"#;
    assert_eq!(daemon.stdout(sh(script)), "");
    assert_eq!(sums(), before);
}

#[test]
fn no_program_of_the_images_gives_privileges() {
    let daemon = daemon!();
    let script = r#"
find / -xdev -type f -perm /6000 2>/dev/null
python3 - <<'END'
import os
for folder, _, files in os.walk('/usr'):
    for file in files:
        try:
            os.getxattr(os.path.join(folder, file), 'security.capability')
            print(folder, file)
        except OSError:
            pass
END
"#;
    for template in ["base", "data"] {
        let text = daemon.stdout(ExecutionSpec {
            template: template.to_owned(),
            ..command(&["sh", "-c", script])
        });
        assert_eq!(text, "", "{template}");
    }
}

#[test]
fn nothing_of_the_host_shows_in_proc() {
    let daemon = daemon!();
    let script = r#"
grep -cE 'cgroup|sysfs|debugfs|tracefs|securityfs|bpf' /proc/mounts
for f in keys timer_list sched_debug kcore kpagecount interrupts latency_stats; do
    head -c 64 /proc/$f 2>/dev/null | wc -c
done | grep -cv '^0$'
grep -cv '^0000000000000000 ' /proc/kallsyms 2>/dev/null
for f in sys/kernel/core_pattern sys/kernel/modprobe sys/vm/drop_caches sysrq-trigger irq/0/smp_affinity; do
    # What is masked is /dev/null: writing there does nothing.
    [ "$(stat -c %t:%T /proc/$f 2>/dev/null)" = 1:3 ] && continue
    (echo x >/proc/$f) 2>/dev/null && echo wrote $f
done
true
"#;
    let text = daemon.stdout(sh(script));
    assert!(text.lines().all(|line| line == "0"), "{text}");
}
