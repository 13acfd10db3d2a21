//! Connections that break at any byte, in either direction.

use std::path::PathBuf;
use std::time::Duration;

use brig_proto::v1::execution_event::Event;
use brig_proto::v1::executions_client::ExecutionsClient;
use brig_proto::v1::files_client::FilesClient;
use brig_proto::v1::files_upload_request::Part;
use brig_proto::v1::sessions_client::SessionsClient;
use brig_proto::v1::{
    CauseKind, ExecuteRequest, ExecutionEvent, ExecutionResult, ExecutionSpec, ExecutionState, ExecutionStatus,
    ExecutionsAttachRequest, ExecutionsCancelRequest, ExecutionsSignalRequest, FilesUploadRequest, OnDisconnect,
    RunRequest, SessionsCreateRequest, SessionsListRequest, UploadSpec, run_request,
};
use brig_tests::proxy::{Cut, Proxy, Random};
use brig_tests::spec::sh;
use brig_tests::{Brig, Daemon, Refused, eventually, slow};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};

use super::rows;

const SESSION: &str = "mine";
const SOON: Duration = Duration::from_secs(10);

/// A daemon behind a proxy.
struct Rig {
    daemon: Daemon,
    proxy: Proxy,
    random: Random,
}

/// What one client has seen of an execution, over all its connections.
#[derive(Debug, Default)]
struct Seen {
    execution: String,
    sequence: u64,
    stdout: Vec<u8>,
    result: Option<ExecutionResult>,
}

impl Seen {
    /// Takes an event: each kept one follows the last, and so does each byte.
    fn take(&mut self, event: ExecutionEvent) {
        if event.sequence > 0 {
            assert_eq!(event.sequence, self.sequence + 1, "{event:?}");
            self.sequence = event.sequence;
        }
        match event.event.unwrap() {
            Event::Accepted(accepted) => {
                assert!(self.execution.is_empty() || self.execution == accepted.execution_id);
                self.execution = accepted.execution_id;
            }
            Event::Output(output) => {
                assert_eq!(output.offset, self.stdout.len() as u64);
                self.stdout.extend_from_slice(&output.data);
            }
            Event::Finished(result) => assert!(self.result.replace(result).is_none(), "finished comes once"),
            _ => {}
        }
    }
}

impl Rig {
    fn open() -> Option<Self> {
        let daemon = Daemon::start()?;
        let proxy = Proxy::start(&daemon.socket());
        daemon.create(SessionsCreateRequest {
            session_id: SESSION.to_owned(),
            template: "base".to_owned(),
            ..SessionsCreateRequest::default()
        });
        let random = Random::seeded();
        Some(Self { daemon, proxy, random })
    }

    fn ledger(&self) -> PathBuf {
        self.daemon.directory().join("ledger.db")
    }

    /// Another connection through the proxy.
    async fn connect(&self) -> Result<Channel, Status> {
        let socket = format!("unix://{}", self.proxy.socket().display());
        let endpoint = Endpoint::try_from(socket).unwrap();
        endpoint
            .connect()
            .await
            .map_err(|error| Status::unavailable(error.to_string()))
    }

    /// Does something over one connection after another until one holds.
    fn until_done<T>(&self, mut work: impl AsyncFnMut(Channel) -> Result<T, Status>) -> T {
        self.daemon.wait(async {
            loop {
                let done = match self.connect().await {
                    Ok(channel) => work(channel).await,
                    Err(status) => Err(status),
                };
                match done {
                    Ok(done) => return done,
                    Err(status) => broken(&status),
                }
            }
        })
    }

    /// Follows an execution to its end, over one connection after another.
    fn follow(&self, begin: &Begin) -> Seen {
        let mut seen = Seen::default();
        self.until_done(async |channel| {
            let mut events = begin.ask(channel, &seen).await?;
            while let Some(event) = events.message().await? {
                seen.take(event);
            }
            if seen.result.is_some() {
                Ok(())
            } else {
                Err(Status::unavailable("no end"))
            }
        });
        seen
    }

    /// Begins, and goes away where the connection breaks, or after a moment.
    fn begin_once(&self, begin: &Begin, cut: Cut) -> Seen {
        let mut seen = Seen::default();
        self.proxy.cut(vec![cut]);
        let following = async {
            let Ok(channel) = self.connect().await else { return };
            let Ok(mut events) = begin.ask(channel, &seen).await else {
                return;
            };
            while let Ok(Some(event)) = events.message().await {
                seen.take(event);
            }
        };
        let moment = Duration::from_millis(300);
        let _broken_or_gone = self
            .daemon
            .wait(async { tokio::time::timeout(moment, following).await });
        seen
    }

    fn text(&self, script: &str) -> String {
        let outcome = self.daemon.execute(SESSION, within(sh(script))).unwrap().finish();
        outcome.expect_success().stdout()
    }
}

/// A connection that broke has no reason of the daemon's. One whose bytes were still on their way may take the place of
/// the next one.
fn broken(status: &Status) {
    let refused = Refused::new(status);
    let transport = matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::Internal
    );
    let replaced = refused.reason == "REQUEST_REPLACED";
    assert!(replaced || transport && refused.reason.is_empty(), "{refused:?}");
}

/// How an execution is asked for.
enum Begin {
    Run(ExecutionSpec),
    Execute(ExecutionSpec),
}

impl Begin {
    async fn ask(&self, channel: Channel, seen: &Seen) -> Result<Streaming<ExecutionEvent>, Status> {
        let mut client = ExecutionsClient::new(channel);
        let answer = if seen.execution.is_empty() {
            match self {
                Self::Run(spec) => {
                    let part = Some(run_request::Part::Spec(spec.clone()));
                    client.run(tokio_stream::iter([RunRequest { part }])).await
                }
                Self::Execute(spec) => {
                    let request = ExecuteRequest {
                        session_id: SESSION.to_owned(),
                        context_id: String::new(),
                        spec: Some(spec.clone()),
                    };
                    client.execute(request).await
                }
            }
        } else {
            let request = ExecutionsAttachRequest {
                execution_id: seen.execution.clone(),
                after_sequence: seen.sequence,
            };
            client.attach(request).await
        };
        Ok(answer?.into_inner())
    }
}

/// A spec as Execute takes it.
fn within(spec: ExecutionSpec) -> ExecutionSpec {
    ExecutionSpec {
        template: String::new(),
        ..spec
    }
}

/// What a script writes that counts up to 30 in steps.
const COUNT: &str = "i=0; while [ $i -lt 30 ]; do echo number $i of thirty; i=$((i + 1)); sleep 0.002; done";

fn counted() -> String {
    (0..30).map(|number| format!("number {number} of thirty\n")).collect()
}

#[test]
fn a_run_that_goes_on_is_run_once_and_each_byte_is_told_once() {
    let Some(mut rig) = Rig::open() else { return };
    for round in 0..25 {
        let request = format!("run{round}");
        let spec = ExecutionSpec {
            request_id: request.clone(),
            on_disconnect: OnDisconnect::Continue.into(),
            ..sh(COUNT)
        };
        let cuts = rig.random.cuts(700, 4000);
        rig.proxy.cut(cuts);
        let seen = rig.follow(&Begin::Run(spec));
        let result = seen.result.unwrap();
        assert_eq!(result.status(), ExecutionStatus::Success, "{result:?}");
        assert_eq!(String::from_utf8(seen.stdout).unwrap(), counted());
        assert_eq!(result.stdout, counted().as_bytes());
        assert_eq!(rows(&rig.ledger(), "executions", &request), 1);
    }
    println!("{} connections cut", rig.proxy.cuts());
    assert!(rig.proxy.cuts() > 2);
}

#[test]
fn what_runs_in_a_kept_session_leaves_its_traces_once() {
    let Some(mut rig) = Rig::open() else { return };
    let rounds = 25;
    for round in 0..rounds {
        let request = format!("execute{round}");
        let spec = ExecutionSpec {
            request_id: request.clone(),
            ..within(sh(&format!("echo {round} >> log; {COUNT}")))
        };
        let cuts = rig.random.cuts(700, 4000);
        rig.proxy.cut(cuts);
        // A command goes on without its caller.
        let seen = rig.follow(&Begin::Execute(spec));
        let result = seen.result.unwrap();
        assert_eq!(result.status(), ExecutionStatus::Success, "{result:?}");
        assert_eq!(String::from_utf8(seen.stdout).unwrap(), counted());
        assert_eq!(rows(&rig.ledger(), "executions", &request), 1);
    }
    let expected: String = (0..rounds).map(|round| format!("{round}\n")).collect();
    assert_eq!(rig.text("cat log"), expected);
    println!("{} connections cut", rig.proxy.cuts());
    assert!(rig.proxy.cuts() > 2);
}

#[test]
fn a_run_that_is_nobodys_any_more_is_cancelled() {
    let Some(mut rig) = Rig::open() else { return };
    for round in 0..12 {
        let request = format!("left{round}");
        let run = Begin::Run(ExecutionSpec {
            request_id: request.clone(),
            execution_id: request.clone(),
            ..sh("echo up; sleep 100")
        });
        // The connection breaks before the request is there, while it is being taken, or behind its first events.
        let cut = match rig.random.below(2) {
            0 => Cut::Up(rig.random.below(700)),
            _ => Cut::Down(rig.random.below(500)),
        };
        let seen = rig.begin_once(&run, cut);
        if seen.execution.is_empty() && rows(&rig.ledger(), "executions", &request) == 0 {
            // The request never came, or is just being taken: the next one has a caller that stays until it runs.
            let Begin::Run(spec) = run else { unreachable!() };
            let mut live = rig.daemon.begin(spec);
            live.until(|event| matches!(event, Event::Output(_) | Event::Finished(_)));
        }
        eventually("it has ended", SOON * slow(), || {
            let execution = rig.daemon.execution(&request);
            match execution.state() {
                ExecutionState::Finished => Ok(()),
                _ => Err(execution.state()),
            }
        });
        let result = rig.daemon.execution(&request).result.unwrap();
        let end = (result.status(), result.cause.as_ref().unwrap().kind());
        assert_eq!(end, (ExecutionStatus::Cancelled, CauseKind::ClientGone));
        assert_eq!(rows(&rig.ledger(), "executions", &request), 1);
    }
}

#[test]
fn a_session_is_made_once() {
    let Some(mut rig) = Rig::open() else { return };
    for round in 0..12 {
        let request = SessionsCreateRequest {
            request_id: format!("create{round}"),
            template: "base".to_owned(),
            labels: [("round".to_owned(), round.to_string())].into(),
            ..SessionsCreateRequest::default()
        };
        let cuts = rig.random.cuts(400, 300);
        rig.proxy.cut(cuts);
        let made = rig.until_done(async |channel| SessionsClient::new(channel).create(request.clone()).await);
        let made = made.into_inner().session.unwrap();
        let list = SessionsListRequest {
            labels: request.labels.clone(),
            ..SessionsListRequest::default()
        };
        let there = rig.daemon.ask(rig.daemon.sessions().list(list)).unwrap().sessions;
        let ids: Vec<&str> = there.iter().map(|session| session.session_id.as_str()).collect();
        assert_eq!(ids, [made.session_id.as_str()]);
        assert_eq!(rows(&rig.ledger(), "sessions", &request.request_id), 1);
        rig.daemon.close(&made.session_id);
    }
    assert!(rig.proxy.cuts() > 2, "{}", rig.proxy.cuts());
}

#[test]
fn a_file_is_put_once_and_whole() {
    let Some(mut rig) = Rig::open() else { return };
    for round in 0..12_usize {
        let content = format!("{round} of twelve, ").repeat(30_000).into_bytes();
        let spec = UploadSpec {
            request_id: format!("put{round}"),
            session_id: SESSION.to_owned(),
            path: format!("files/{round}.bin"),
            make_parents: true,
            size_bytes: Some(content.len() as u64),
            ..UploadSpec::default()
        };
        let messages: Vec<FilesUploadRequest> = std::iter::once(Part::Spec(spec))
            .chain(content.chunks(100_000).map(|chunk| Part::Data(chunk.to_vec().into())))
            .map(|part| FilesUploadRequest { part: Some(part) })
            .collect();
        let cuts = rig.random.cuts(450_000, 300);
        rig.proxy.cut(cuts);
        let put = rig.until_done(async |channel| {
            let messages = tokio_stream::iter(messages.clone());
            FilesClient::new(channel).upload(messages).await
        });
        let put = put.into_inner().file.unwrap();
        // Another one that is not the same request finds the file, which proves that no retry replaced it.
        assert_eq!(put.size_bytes, content.len() as u64);
        let sum = rig.text(&format!("sha256sum < files/{round}.bin"));
        assert_eq!(sum.split(' ').next(), Some(put.sha256.as_str()));
    }
    // Nothing of what broke off lies about.
    assert_eq!(
        rig.text("ls -A files | wc -l; ls -A | wc -l")
            .split_whitespace()
            .collect::<Vec<_>>(),
        ["12", "1"]
    );
    assert!(rig.proxy.cuts() > 2, "{}", rig.proxy.cuts());
}

#[test]
fn cancel_and_signal_are_done_once() {
    let Some(mut rig) = Rig::open() else { return };
    for round in 0..12 {
        let name = format!("told{round}");
        let script = format!("trap 'echo {round} >> signals' USR1; echo up; while :; do sleep 0.01; done");
        let spec = ExecutionSpec {
            execution_id: name.clone(),
            ..within(sh(&script))
        };
        let mut live = rig.daemon.execute(SESSION, spec).unwrap();
        live.until_written("up\n");
        let signal = ExecutionsSignalRequest {
            request_id: format!("signal{round}"),
            execution_id: name.clone(),
            signal: 10, // SIGUSR1
            group: false,
        };
        let cuts = rig.random.cuts(350, 200);
        rig.proxy.cut(cuts);
        rig.until_done(async |channel| ExecutionsClient::new(channel).signal(signal.clone()).await);
        eventually("the signal came", SOON * slow(), || {
            let lines = rig.text("wc -l < signals 2>/dev/null || echo 0");
            if lines.trim() == format!("{}", round + 1) {
                Ok(())
            } else {
                Err(lines)
            }
        });
        let cancel = ExecutionsCancelRequest {
            request_id: format!("cancel{round}"),
            execution_id: name.clone(),
        };
        let cuts = rig.random.cuts(350, 200);
        rig.proxy.cut(cuts);
        rig.until_done(async |channel| ExecutionsClient::new(channel).cancel(cancel.clone()).await);
        let outcome = live.finish();
        assert_eq!(outcome.end(), (ExecutionStatus::Cancelled, Some(CauseKind::Cancel)));
        // It stays done.
        rig.until_done(async |channel| ExecutionsClient::new(channel).signal(signal.clone()).await);
        rig.until_done(async |channel| ExecutionsClient::new(channel).cancel(cancel.clone()).await);
        let other = ExecutionsSignalRequest { signal: 12, ..signal };
        let refused = rig.daemon.ask(rig.daemon.client().signal(other)).unwrap_err();
        assert_eq!(refused.reason, "REQUEST_ID_REUSED");
    }
    let expected: String = (0..12).map(|round| format!("{round}\n")).collect();
    assert_eq!(rig.text("cat signals"), expected);
    assert!(rig.proxy.cuts() > 2, "{}", rig.proxy.cuts());
}

/// Runs the command; again where its very first connection broke: it takes that for a daemon that is not there.
fn run_command(proxy: &Proxy, arguments: &[&str]) -> Brig {
    loop {
        let line = Brig::command(&proxy.socket(), arguments).run();
        if !line.stderr.starts_with("error: no daemon at ") {
            return line;
        }
    }
}

#[test]
fn the_command_mends_what_breaks() {
    let Some(mut rig) = Rig::open() else { return };
    for round in 0..12 {
        let request = format!("cli{round}");
        let script = format!("echo {round} >> commands; {COUNT}");
        let cuts = rig.random.cuts(900, 4000);
        rig.proxy.cut(cuts);
        let arguments = ["exec", "--request-id", &request, SESSION, "--", "sh", "-c", &script];
        let line = run_command(&rig.proxy, &arguments).expect(0);
        assert_eq!(line.text(), counted(), "{}", line.stderr);
        assert_eq!(rows(&rig.ledger(), "executions", &request), 1);
    }
    let expected: String = (0..12).map(|round| format!("{round}\n")).collect();
    assert_eq!(rig.text("cat commands"), expected);
    // What has no session to stay in ends with its caller, unless the next connection comes before that is seen.
    for round in 0..8 {
        let request = format!("once{round}");
        let cuts = rig.random.cuts(900, 4000);
        rig.proxy.cut(cuts);
        let arguments = [
            "run",
            "--template",
            "base",
            "--request-id",
            &request,
            "--",
            "sh",
            "-c",
            COUNT,
        ];
        let line = run_command(&rig.proxy, &arguments);
        match line.code {
            Some(0) => assert_eq!(line.text(), counted()),
            Some(130) => assert!(counted().starts_with(&line.text()), "{}", line.text()),
            _ => panic!("{line:?}"),
        }
        assert_eq!(rows(&rig.ledger(), "executions", &request), 1);
    }
    assert!(rig.proxy.cuts() > 2, "{}", rig.proxy.cuts());
}

#[test]
fn a_refusal_is_for_all_who_ask_the_same_at_one_time() {
    let Some(daemon) = Daemon::start_configured("[limits]\nrunning = 4\n") else {
        return;
    };
    // As many executions as may run or wait in one session, and some more of one request.
    daemon.create(SessionsCreateRequest {
        session_id: SESSION.to_owned(),
        template: "base".to_owned(),
        ..SessionsCreateRequest::default()
    });
    let spec = || within(sh("exec sleep 100"));
    let mut lives: Vec<_> = (0..64).map(|_| daemon.execute(SESSION, spec()).unwrap()).collect();
    let request = ExecuteRequest {
        session_id: SESSION.to_owned(),
        context_id: String::new(),
        spec: Some(ExecutionSpec {
            request_id: "same".to_owned(),
            ..spec()
        }),
    };
    let refusals = daemon.wait(async {
        let asking = (0..8).map(|_| {
            let (mut client, request) = (daemon.client(), request.clone());
            tokio::spawn(async move { client.execute(request).await.map(drop) })
        });
        let mut refusals = Vec::new();
        for asked in asking.collect::<Vec<_>>() {
            refusals.push(Refused::new(&asked.await.unwrap().unwrap_err()));
        }
        refusals
    });
    for refusal in refusals {
        assert_eq!(
            (refusal.code, refusal.reason.as_str()),
            (Code::ResourceExhausted, "QUEUE_FULL")
        );
    }
    drop(lives.pop());
    daemon.close(SESSION);
}
