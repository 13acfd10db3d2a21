//! Files of kept sessions, with real jails.
#![allow(clippy::unwrap_used, reason = "a test that can't go on should stop")]

mod changes;
mod command;
mod gate;
mod transfer;

use brig_proto::v1::files_download_response::Part as Got;
use brig_proto::v1::files_upload_request::Part as Sent;
use brig_proto::v1::{
    FileInfo, FilesDownloadRequest, FilesListRequest, FilesMakeDirRequest, FilesMoveRequest, FilesRemoveRequest,
    FilesStatRequest, FilesUploadRequest, SessionsCreateRequest, UploadSpec,
};
use brig_tests::policies::Policies;
use brig_tests::{Daemon, Refused};
use sha2::{Digest, Sha256};

/// The session that a test has.
const SESSION: &str = "mine";

/// A daemon with a session whose policy lets every file leave.
struct Rig {
    daemon: Daemon,
    _policies: Policies,
}

impl Rig {
    /// `None` where this host can't run one.
    fn open(download: &'static str) -> Option<Self> {
        let changes = [("open", ("download = \"artifacts\"", download))];
        let policies = Policies::with(&changes)?;
        let daemon = Daemon::start_with(policies.path())?;
        let rig = Self {
            daemon,
            _policies: policies,
        };
        rig.daemon.create(SessionsCreateRequest {
            session_id: SESSION.to_owned(),
            policy: "open".to_owned(),
            template: "base".to_owned(),
            ..SessionsCreateRequest::default()
        });
        Some(rig)
    }

    fn upload(&self, spec: UploadSpec, bytes: &[u8]) -> Result<FileInfo, Refused> {
        let mut messages = vec![FilesUploadRequest {
            part: Some(Sent::Spec(spec)),
        }];
        messages.extend(bytes.chunks(256 * 1024).map(|chunk| FilesUploadRequest {
            part: Some(Sent::Data(chunk.to_vec().into())),
        }));
        let mut client = self.daemon.files();
        let call = client.upload(tokio_stream::iter(messages));
        Ok(self.daemon.ask(call)?.file.unwrap())
    }

    fn put(&self, path: &str, bytes: &[u8]) -> FileInfo {
        self.upload(spec(path), bytes).unwrap()
    }

    fn download(&self, path: &str, offset: u64, length: Option<u64>) -> Result<(FileInfo, Vec<u8>), Refused> {
        let request = FilesDownloadRequest {
            session_id: SESSION.to_owned(),
            path: path.to_owned(),
            offset,
            length,
            ..FilesDownloadRequest::default()
        };
        let mut stream = self.daemon.ask(self.daemon.files().download(request))?;
        let (mut file, mut bytes, mut digest) = (None, Vec::new(), None);
        while let Some(message) = self
            .daemon
            .wait(stream.message())
            .map_err(|status| Refused::new(&status))?
        {
            assert!(digest.is_none(), "the digest is last");
            match message.part.unwrap() {
                Got::File(info) => assert_eq!(file.replace(info), None),
                Got::Data(data) => bytes.extend_from_slice(&data),
                Got::Digest(given) => digest = Some(given),
            }
        }
        let digest = digest.unwrap();
        assert_eq!((digest.size_bytes, digest.sha256), (bytes.len() as u64, hex(&bytes)));
        Ok((file.unwrap(), bytes))
    }

    fn stat(&self, path: &str) -> Result<FileInfo, Refused> {
        let request = FilesStatRequest {
            session_id: SESSION.to_owned(),
            path: path.to_owned(),
            want_sha256: true,
            ..FilesStatRequest::default()
        };
        Ok(self.daemon.ask(self.daemon.files().stat(request))?.file.unwrap())
    }

    fn make_dir(&self, path: &str, make_parents: bool) -> Result<FileInfo, Refused> {
        let request = FilesMakeDirRequest {
            session_id: SESSION.to_owned(),
            path: path.to_owned(),
            make_parents,
            ..FilesMakeDirRequest::default()
        };
        Ok(self.daemon.ask(self.daemon.files().make_dir(request))?.file.unwrap())
    }

    fn rename(&self, source: &str, destination: &str) -> Result<FileInfo, Refused> {
        let request = FilesMoveRequest {
            session_id: SESSION.to_owned(),
            source: source.to_owned(),
            destination: destination.to_owned(),
            ..FilesMoveRequest::default()
        };
        Ok(self.daemon.ask(self.daemon.files().r#move(request))?.file.unwrap())
    }

    fn remove(&self, request: FilesRemoveRequest) -> Result<u64, Refused> {
        let request = FilesRemoveRequest {
            session_id: SESSION.to_owned(),
            ..request
        };
        Ok(self.daemon.ask(self.daemon.files().remove(request))?.removed)
    }

    /// All pages.
    fn list(&self, path: &str, depth: u32, page_size: u32) -> Result<Vec<FileInfo>, Refused> {
        let mut request = FilesListRequest {
            session_id: SESSION.to_owned(),
            path: path.to_owned(),
            depth,
            page_size,
            ..FilesListRequest::default()
        };
        let mut files = Vec::new();
        loop {
            let page = self.daemon.ask(self.daemon.files().list(request.clone()))?;
            files.extend(page.files);
            if page.next_page_token.is_empty() {
                return Ok(files);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Runs something in the session that must succeed.
    fn sh(&self, script: &str) -> String {
        let live = self
            .daemon
            .execute(SESSION, brig_tests::spec::command(&["sh", "-c", script]));
        live.unwrap().finish().expect_success().stdout()
    }
}

fn spec(path: &str) -> UploadSpec {
    UploadSpec {
        session_id: SESSION.to_owned(),
        path: path.to_owned(),
        ..UploadSpec::default()
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
