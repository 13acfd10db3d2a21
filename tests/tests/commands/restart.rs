//! brigd goes and comes back while somebody talks to a program.

use brig_proto::v1::ExecutionSpec;
use brig_proto::v1::execution_event::Event;
use brig_tests::services::Setup;
use brig_tests::{Service, Services};

use super::{at_terminal, close_input, give, open, piece, resize, say, start, streaming};

/// Ends brigd in one of the ways in which it ends, and starts the next one.
fn restart(services: &mut Services, planned: bool) {
    if planned {
        services.stop();
    } else {
        services.kill(Service::Daemon);
    }
    services.launch(Service::Daemon);
}

fn name(kind: &str) -> String {
    format!("{kind}{}", std::process::id())
}

#[test]
fn input_goes_on_by_its_offset_and_no_byte_is_given_twice() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let name = name("input");
    let script = "python3 -c '
import hashlib, sys
data = sys.stdin.buffer.read()
print(len(data), hashlib.sha256(data).hexdigest())
'";
    drop(start(&services, &name, open(script)));
    let data: Vec<u8> = (0..2_000_000_usize).map(|i| (i / 3).to_le_bytes()[0]).collect();
    let mut known = 0;
    for (number, piece_end) in (100_000..=data.len()).step_by(100_000).enumerate() {
        // Always some of what is there already.
        let from = known / 2;
        let chunks = data[from..piece_end].chunks(200_000).enumerate();
        let pieces = chunks.map(|(at, chunk)| piece(&name, chunk, Some((from + at * 200_000) as u64)));
        let total = give(&services, pieces.collect()).unwrap();
        assert_eq!(total, piece_end as u64);
        known = piece_end;
        if number % 5 == 1 {
            restart(&mut services, number % 2 == 0);
        }
    }
    close_input(&services, &name).unwrap();
    restart(&mut services, false);
    let outcome = services.attach(&name, 0).unwrap().finish().expect_success();
    use sha2::{Digest, Sha256};
    let hex: String = Sha256::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(outcome.stdout(), format!("{} {hex}\n", data.len()));
}

#[test]
fn a_terminal_goes_on_and_is_still_one() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let name = name("terminal");
    let mut live = start(&services, &name, streaming(at_terminal("exec python3 -i -q", 90, 30)));
    live.until_written(">>> ");
    drop(live);
    for (number, planned) in [false, true, false].into_iter().enumerate() {
        restart(&mut services, planned);
        let mut live = services.attach(&name, 0).unwrap();
        say(&services, &name, &format!("print('life', {number} + 1)\n"));
        live.until_written(&format!("\nlife {}\r\n", number + 1));
        resize(&services, &name, 100 + u32::try_from(number).unwrap(), 30).unwrap();
        say(&services, &name, "import os; print(os.get_terminal_size().columns)\n");
        // A terminal's end is typed once: not while the program changes between its own line and the terminal's.
        live.until_written(&format!("\n{}\r\n>>> ", 100 + number));
    }
    close_input(&services, &name).unwrap();
    restart(&mut services, false);
    let outcome = services.attach(&name, 0).unwrap().finish().expect_success();
    assert_eq!(outcome.stdout().matches("\nlife ").count(), 3, "{:?}", outcome.stdout());
}

#[test]
fn output_that_streams_goes_on_where_it_was() {
    let Some(mut services) = Services::start(Setup::default()) else {
        return;
    };
    let name = name("stream");
    let padding = ".".repeat(100);
    let script = format!("i=0; while [ $i -lt 60000 ]; do echo {padding} $i; i=$((i + 1)); done");
    let spec = ExecutionSpec {
        stdin_open: false,
        ..streaming(open(&script))
    };
    drop(start(&services, &name, spec));
    let (mut known, mut text) = (0, Vec::new());
    for planned in [false, true, false, true] {
        let mut live = services.attach(&name, known).unwrap();
        let goal = text.len() + (1 << 20);
        let mut got = text.len();
        while got < goal {
            if let Event::Output(output) = live.until(|event| matches!(event, Event::Output(_))) {
                got += output.data.len();
            }
        }
        take(live.seen(), &mut known, &mut text);
        drop(live);
        restart(&mut services, planned);
    }
    let outcome = services.attach(&name, known).unwrap().finish().expect_success();
    take(&outcome.events, &mut known, &mut text);
    let expected: String = (0..60_000).map(|i| format!("{padding} {i}\n")).collect();
    assert!(
        text == expected.as_bytes(),
        "{} of {} bytes",
        text.len(),
        expected.len()
    );
}

/// Takes what came: every event follows the last one, every byte too.
fn take(events: &[brig_proto::v1::ExecutionEvent], known: &mut u64, text: &mut Vec<u8>) {
    for event in events.iter().filter(|event| event.sequence > 0) {
        assert_eq!(event.sequence, *known + 1);
        *known = event.sequence;
        if let Some(Event::Output(output)) = &event.event {
            assert_eq!(output.offset, text.len() as u64);
            text.extend_from_slice(&output.data);
        }
    }
}
