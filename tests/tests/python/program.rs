//! Programs run as `python3 FILE` would run them, and a little better.

use std::time::Duration;

use brig_proto::v1::execution_spec::Work;
use brig_proto::v1::{CauseKind, Code, ExecutionSpec, ExecutionStatus};
use brig_tests::daemon;
use brig_tests::spec::{input, small, timeout};
use serde_json::json;

#[test]
fn code_is_main_with_its_file_its_arguments_and_its_working_directory() {
    let daemon = daemon!();
    let work = Code {
        source: "import os, sys\nprint([__name__, __file__, sys.argv, sys.path[0], os.getcwd()])".to_owned(),
        filename: "report.py".to_owned(),
        arguments: vec!["--year".to_owned(), "2025 ü".to_owned()],
        ..Code::default()
    };
    let spec = ExecutionSpec {
        work: Some(Work::Code(work)),
        ..small("")
    };
    assert_eq!(
        daemon.stdout(spec),
        "['__main__', '/home/user/report.py', ['report.py', '--year', '2025 ü'], '/home/user', '/home/user']\n"
    );
}

#[test]
fn await_works_at_top_level() {
    let daemon = daemon!();
    let source = "\
import asyncio

async def double(x):
    await asyncio.sleep(0.01)
    return 2 * x

print(await asyncio.gather(*map(double, range(3))))
async with asyncio.timeout(5):
    print(await double(21))
await double(4)
";
    let outcome = daemon.run(small(source)).expect_success();
    assert_eq!(outcome.stdout(), "[0, 2, 4]\n42\n");
    assert_eq!(outcome.document()["results"][0]["data"], json!({"text/plain": "8"}));
}

#[test]
fn asyncio_run_works_too() {
    let daemon = daemon!();
    let source = "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    print('ran')\nasyncio.run(main())";
    assert_eq!(daemon.stdout(small(source)), "ran\n");
}

#[test]
fn files_beside_the_code_can_be_imported_and_read() {
    let daemon = daemon!();
    let spec = ExecutionSpec {
        inputs: vec![
            input(
                "rates.py",
                b"from math import log\nVAT = 0.19\n\ndef gross(net):\n    return round(net * (1 + VAT), 2)\n",
            ),
            input("données.txt", "née à Zürich\n".as_bytes()),
        ],
        ..small("import rates\nprint(rates.gross(100))\nprint(open('données.txt').read(), end='')")
    };
    let outcome = daemon.run(spec).expect_success();
    assert_eq!(outcome.stdout(), "119.0\nnée à Zürich\n");
    // No cache of bytecode is taken for an output.
    assert_eq!(outcome.paths(), Vec::<&str>::new());
}

#[test]
fn input_fails_at_once() {
    let daemon = daemon!();
    let outcome = daemon.run(small("name = input('Your name: ')"));
    assert_eq!(outcome.result.status(), ExecutionStatus::Error);
    assert_eq!(outcome.stdout(), "Your name: ");
    let error = outcome.document()["error"].clone();
    assert_eq!(error["name"], "EOFError");
    assert_eq!(error["message"], "EOF when reading a line");
    assert!(outcome.result.duration.as_ref().unwrap().seconds < 5);
}

#[test]
fn what_was_printed_before_a_timeout_is_kept() {
    let daemon = daemon!();
    let source = "import time\nfor step in range(1000):\n    print('step', step)\n    time.sleep(0.1)";
    let spec = ExecutionSpec {
        limits: timeout(3000),
        ..small(source)
    };
    let outcome = daemon.run(spec);
    assert_eq!(outcome.result.status(), ExecutionStatus::Timeout);
    assert_eq!(outcome.result.cause.as_ref().unwrap().kind(), CauseKind::WallTime);
    assert!(
        outcome.stdout().starts_with("step 0\nstep 1\nstep 2\n"),
        "{:?}",
        outcome.stdout()
    );
}

#[test]
fn what_was_flushed_within_a_line_is_kept_when_the_program_is_killed() {
    let daemon = daemon!();
    let source = "import os, signal\nprint('50 %', end='', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)";
    let outcome = daemon.run(small(source));
    assert_eq!(outcome.result.status(), ExecutionStatus::Killed);
    assert_eq!(outcome.stdout(), "50 %");
}

#[test]
fn a_line_leaves_when_it_is_printed_not_when_the_code_ends() {
    let daemon = daemon!();
    let mut live = daemon.begin(small(
        "import sys, time\nprint('early')\nprint('warned', file=sys.stderr)\ntime.sleep(60)",
    ));
    let is_output = |event: &_| matches!(event, brig_proto::v1::execution_event::Event::Output(_));
    live.until(is_output);
    live.until(is_output);
    drop(live);
}

#[test]
fn threads_run_and_are_waited_for() {
    let daemon = daemon!();
    let source = "\
import threading, time
from concurrent.futures import ThreadPoolExecutor

def late():
    time.sleep(0.2)
    print('late')

threading.Thread(target=late).start()
with ThreadPoolExecutor(4) as pool:
    print(list(pool.map(lambda x: x * x, range(5))))
";
    assert_eq!(daemon.stdout(small(source)), "[0, 1, 4, 9, 16]\nlate\n");
}

#[test]
fn sqlite_ssl_and_compression_are_there() {
    let daemon = daemon!();
    let source = "\
import bz2, ctypes, decimal, hashlib, lzma, sqlite3, ssl, uuid, zlib, zoneinfo
db = sqlite3.connect('shop.db')
db.execute('create table sale (region text, amount integer)')
db.executemany('insert into sale values (?, ?)', [('north', 10), ('south', 20), ('north', 5)])
db.commit()
print(db.execute('select region, sum(amount) from sale group by region order by 1').fetchall())
print(ssl.create_default_context().verify_mode.name, hashlib.sha256(b'').hexdigest()[:8])
print(all(c.decompress(c.compress(b'x' * 1000)) == b'x' * 1000 for c in (bz2, lzma, zlib)))
";
    assert_eq!(
        daemon.stdout(small(source)),
        "[('north', 15), ('south', 20)]\nCERT_REQUIRED e3b0c442\nTrue\n"
    );
}

#[test]
fn tools_of_the_shell_work_from_python() {
    let daemon = daemon!();
    let source = r#"
import subprocess
open("access.log", "w").write("GET /a 200\nGET /b 500\nPOST /a 200\nGET /a 500\n")
shell = "grep ' 500$' access.log | sort | awk '{print $2}' | tr '\\n' ' '"
print(subprocess.run(shell, shell=True, text=True, capture_output=True, check=True).stdout)
print(subprocess.check_output(["python3", "-c", "print(6 * 7)"], text=True).strip())
print(subprocess.run(["sh", "-c", "exit 3"]).returncode)
"#;
    assert_eq!(daemon.stdout(small(source)), "/a /b \n42\n3\n");
}

#[test]
fn a_sleeping_program_is_no_slower_than_outside() {
    let daemon = daemon!();
    let outcome = daemon.run(small(
        "import time\nt = time.perf_counter()\ntime.sleep(0.3)\nprint(time.perf_counter() - t)",
    ));
    let slept: f64 = outcome.stdout().trim().parse().unwrap();
    assert!((0.3..3.0).contains(&slept), "{slept}");
    let duration = Duration::try_from(outcome.result.duration.unwrap()).unwrap();
    assert!(duration >= Duration::from_millis(300), "{duration:?}");
}
