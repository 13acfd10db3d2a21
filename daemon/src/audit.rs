//! The service Ledger: the record for those who audit.
//!
//! Entries are read from the database in batches, each client at its own pace: a slow one holds nothing and misses
//! nothing. A tenant's auditors see its entries alone; operators may ask for another tenant's, or for all.

mod erase;
mod filter;
mod house;
mod show;
mod stream;

use std::sync::Arc;

use brig_proto::sizes::{PAGE_DEFAULT, PAGE_MAX};
use brig_proto::v1;
use brig_proto::v1::ledger_server::Ledger as LedgerApi;
use tonic::codegen::BoxStream;
use tonic::{Request, Response, Status};

use self::erase::Remembered;
use self::filter::Asked;
pub use self::house::keep_house;
use crate::calls::{note_refusal, with_role};
use crate::config::Role;
use crate::host::Host;
use crate::ledger::{Filter, Most, Start};
use crate::pages;
use crate::principal::Principal;
use crate::slots::Slots;
use crate::status::Problem;

/// Calls that stream entries at one time.
const STREAMS: usize = 64;
/// Verifications at one time: they read everything.
const VERIFICATIONS: usize = 2;

/// Serves Ledger.
#[derive(Debug, Clone)]
pub struct AuditService {
    host: Arc<Host>,
    streams: Arc<Slots>,
    verifications: Arc<Slots>,
    erased: Arc<Remembered>,
}

impl AuditService {
    /// Makes the service.
    pub fn new(host: Arc<Host>) -> Self {
        Self {
            host,
            streams: Slots::new(STREAMS),
            verifications: Slots::new(VERIFICATIONS),
            erased: Arc::default(),
        }
    }

    /// Reads filters; who asks for more than they may see is recorded.
    fn filter(&self, asked: Asked<'_>, principal: &Principal) -> Result<Filter, Problem> {
        filter::read(asked, principal).inspect_err(|problem| {
            if matches!(problem, Problem::Role(_)) {
                note_refusal(&self.host.ledger, problem, principal);
            }
        })
    }
}

#[tonic::async_trait]
impl LedgerApi for AuditService {
    type FollowStream = BoxStream<v1::LedgerFollowResponse>;
    type ExportStream = BoxStream<v1::LedgerExportResponse>;

    async fn list(&self, request: Request<v1::LedgerListRequest>) -> Result<Response<v1::LedgerListResponse>, Status> {
        let principal = with_role(&request, Role::Auditor)?;
        let asked = request.into_inner();
        let filter = self.filter(Asked::from(&asked), &principal)?;
        let before = filter::page_start(&asked.page_token)?;
        let entries = match asked.page_size {
            0 => PAGE_DEFAULT,
            size => size.min(PAGE_MAX),
        };
        let most = Most {
            entries: usize::try_from(entries).unwrap_or(usize::MAX),
            bytes: pages::BYTES,
        };
        let batch = self.host.ledger.batch(filter, Start::Before(before), most).await;
        let batch = batch.map_err(Problem::from)?;
        let last = batch.entries.last().filter(|_| batch.more);
        Ok(Response::new(v1::LedgerListResponse {
            next_page_token: last.map(|entry| entry.number.to_string()).unwrap_or_default(),
            entries: batch.entries.into_iter().map(show::entry).collect(),
        }))
    }

    async fn follow(&self, request: Request<v1::LedgerFollowRequest>) -> Result<Response<Self::FollowStream>, Status> {
        let principal = with_role(&request, Role::Auditor)?;
        let asked = request.into_inner();
        let filter = self.filter(Asked::from(&asked), &principal)?;
        let after = filter::sequence("after_sequence", asked.after_sequence)?;
        let slot = self.streams.try_take().ok_or(Problem::LedgerBusy(STREAMS))?;
        Ok(Response::new(stream::follow(&self.host, filter, after, slot)))
    }

    async fn export(&self, request: Request<v1::LedgerExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let principal = with_role(&request, Role::Auditor)?;
        let asked = request.into_inner();
        let filter = self.filter(Asked::from(&asked), &principal)?;
        let after = filter::sequence("after_sequence", asked.after_sequence)?;
        let slot = self.streams.try_take().ok_or(Problem::LedgerBusy(STREAMS))?;
        Ok(Response::new(stream::export(&self.host, filter, after, slot)))
    }

    async fn verify(
        &self,
        request: Request<v1::LedgerVerifyRequest>,
    ) -> Result<Response<v1::LedgerVerifyResponse>, Status> {
        with_role(&request, Role::Auditor)?;
        let range = filter::range(&request.into_inner())?;
        let busy = Problem::LedgerBusy(VERIFICATIONS);
        let _slot = self.verifications.try_take().ok_or(busy)?;
        let verdict = self.host.ledger.verify(range).await.map_err(Problem::from)?;
        Ok(Response::new(show::verdict(&verdict)))
    }

    async fn erase(
        &self,
        request: Request<v1::LedgerEraseRequest>,
    ) -> Result<Response<v1::LedgerEraseResponse>, Status> {
        let principal = with_role(&request, Role::Operator)?;
        let asked = request.into_inner();
        Ok(Response::new(
            erase::erase(&self.host, &self.erased, &asked, &principal).await?,
        ))
    }

    async fn sweep(
        &self,
        request: Request<v1::LedgerSweepRequest>,
    ) -> Result<Response<v1::LedgerSweepResponse>, Status> {
        with_role(&request, Role::Operator)?;
        let ledger = &self.host.ledger;
        let swept = if request.into_inner().dry_run {
            ledger.count_due().await
        } else {
            ledger.sweep().await
        };
        let swept = swept.map_err(Problem::from)?;
        Ok(Response::new(v1::LedgerSweepResponse {
            works: swept.works,
            outputs: swept.outputs,
            names: swept.names,
            bytes: swept.bytes,
        }))
    }
}
