//! The part of the API that this version doesn't do yet: complete, so that clients can be written, and plain about it.

use brig_proto::v1;
use tonic::codegen::BoxStream;

/// Answers every call of the services that are not built.
#[derive(Debug, Clone, Copy)]
pub struct Unbuilt;

/// Writes methods of a service that answer UNIMPLEMENTED: `name(Request) -> Response, "Service.Method";`.
///
/// They are written in the form that async_trait gives to `async fn`, since that macro doesn't look into others.
macro_rules! unbuilt {
    ($($method:ident($request:ty) -> $response:ty, $name:literal;)+) => {$(
        fn $method<'a, 'async_trait>(
            &'a self,
            _request: tonic::Request<$request>,
        ) -> std::pin::Pin<
            Box<dyn Future<Output = Result<tonic::Response<$response>, tonic::Status>> + Send + 'async_trait>,
        >
        where
            'a: 'async_trait,
            Self: 'async_trait,
        {
            Box::pin(std::future::ready(Err(crate::status::Problem::NotImplemented($name).into())))
        }
    )+};
}
pub(crate) use unbuilt;

impl v1::packages_server::Packages for Unbuilt {
    type InstallStream = BoxStream<v1::PackagesInstallResponse>;
    unbuilt! {
        list(v1::PackagesListRequest) -> v1::PackagesListResponse, "Packages.List";
        install(v1::PackagesInstallRequest) -> Self::InstallStream, "Packages.Install";
    }
}
