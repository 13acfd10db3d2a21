//! brigd is killed while files come in.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use brig_tests::services::Setup;
use brig_tests::{Brig, Service, Services};
use rusqlite::{Connection, OpenFlags};

use super::{get, hex};

/// Puts files, three at a time, until nobody answers; gives the ids that were told.
fn put_until_killed(services: &mut Services, folder: &Path, round: u64) -> Vec<String> {
    let socket = services.socket();
    let told = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for lane in 0..3 {
            let (socket, told) = (&socket, &told);
            let file = folder.join(format!("{lane}"));
            scope.spawn(move || {
                for number in 0.. {
                    let id = format!("r{round}l{lane}n{number}");
                    let put = Brig::command(socket, &["input", "put", "-q", "--id", &id, file.to_str().unwrap()]).run();
                    if put.code != Some(0) {
                        return;
                    }
                    told.lock().unwrap().push(id);
                }
            });
        }
        while told.lock().unwrap().len() < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        // At some point of what goes on by then.
        std::thread::sleep(Duration::from_millis((round * 37) % 120));
        services.kill(Service::Daemon);
    });
    told.into_inner().unwrap()
}

/// The files that records have, with their digests.
fn recorded(inputs: &Path) -> BTreeSet<(String, String)> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let records = Connection::open_with_flags(inputs.join("records.db"), flags).unwrap();
    let mut select = records
        .prepare("SELECT file, sha256 FROM inputs WHERE gone_ms IS NULL")
        .unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn kill_minus_nine_leaves_no_torn_file_no_record_without_bytes_and_no_bytes_without_a_record() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for lane in 0..3_u32 {
        let bytes = super::bytes((lane * 4 + 1) << 20);
        std::fs::write(folder.path().join(format!("{lane}")), bytes).unwrap();
    }
    let mut all = Vec::new();
    for round in 0..6 {
        all.extend(put_until_killed(&mut services, folder.path(), round));
        services.launch(Service::Daemon);
        let inputs = services.directory().join("state/inputs");
        let lying: BTreeSet<(String, String)> = std::fs::read_dir(inputs.join("files"))
            .unwrap()
            .map(|entry| {
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                (name, hex(&std::fs::read(path).unwrap()))
            })
            .collect();
        assert_eq!(lying, recorded(&inputs));
        assert_eq!(std::fs::read_dir(inputs.join("incoming")).unwrap().count(), 0);
    }
    for id in &all {
        get(&services, id).unwrap();
    }
    assert!(all.len() >= 18, "{}", all.len());
}
