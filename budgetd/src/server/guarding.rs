//! The guard in front of all gRPC services: finds out whose a request is, and refuses what nobody of its kind may do.
//!
//! What a role is needed for is decided here by the name of the method, so a new method is closed until it is named. Which
//! dependency is meant stands in the message, and is judged by the service.

use std::{
    future::{Ready, ready},
    sync::Arc,
    task::{Context, Poll},
};

use axum::http::{Request, Response};
use futures::future::Either;
use tonic::{Status, body::Body};
use tower::{Layer, Service};

use crate::security::{Access, Guard, Peer, Refused, Role};

/// Puts a guard in front of services.
#[derive(Clone, Debug)]
pub(super) struct Guarding(pub(super) Arc<Guard>);

/// Services behind a guard.
#[derive(Clone, Debug)]
pub(super) struct Guarded<S> {
    inner: S,
    guard: Arc<Guard>,
}

/// What a method asks for before its message is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needed {
    /// Probes bring no credentials.
    Nothing,
    /// To be somebody known.
    Identity,
    /// A role on the dependency that the message names.
    On(Role),
    /// A role on every dependency.
    OnAll(Role),
}

fn needed(path: &str) -> Needed {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.rsplit_once('/')) else {
        return Needed::OnAll(Role::Operate);
    };
    match (service, method) {
        ("grpc.health.v1.Health", _) => Needed::Nothing,
        ("grpc.reflection.v1.ServerReflection" | "grpc.reflection.v1alpha.ServerReflection", _) => Needed::Identity,
        ("retrybudget.v1.RetryBudget", "Reserve" | "Release" | "Extend" | "Session" | "Sync" | "ReportReceived") => {
            Needed::On(Role::Reserve)
        }
        ("retrybudget.v1.BudgetAdmin", "GetPolicy" | "GetStatus" | "ListHolders" | "WatchStatus") => {
            Needed::On(Role::Read)
        }
        ("retrybudget.v1.BudgetAdmin", "ListPolicies" | "PolicyHistory") => Needed::OnAll(Role::Read),
        ("retrybudget.v1.BudgetAdmin", "PutPolicy" | "DeletePolicy" | "SetRetries" | "RevokeLease") => {
            Needed::On(Role::Operate)
        }
        _ => Needed::OnAll(Role::Operate),
    }
}

// === impl Guarded ===

impl<S> Guarded<S> {
    fn judge<B>(&self, request: &Request<B>) -> Result<Option<Access>, Refused> {
        let needed = needed(request.uri().path());
        if needed == Needed::Nothing {
            return Ok(None);
        }
        let access = self.guard.access(request.headers(), request.extensions().get::<Peer>())?;
        match needed {
            Needed::Nothing | Needed::Identity => Ok(()),
            Needed::On(role) => access.permit_some(role),
            Needed::OnAll(role) => access.permit_all(role),
        }?;
        Ok(Some(access))
    }
}

impl<S> Layer<S> for Guarding {
    type Service = Guarded<S>;

    fn layer(&self, inner: S) -> Guarded<S> {
        Guarded { inner, guard: Arc::clone(&self.0) }
    }
}

impl<S, B> Service<Request<B>> for Guarded<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Response<Body>, S::Error>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        if self.guard.is_open() {
            return Either::Left(self.inner.call(request));
        }
        match self.judge(&request) {
            Ok(access) => {
                if let Some(access) = access {
                    request.extensions_mut().insert(access);
                }
                Either::Left(self.inner.call(request))
            }
            Err(refused) => Either::Right(ready(Ok(Status::from(refused).into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use budget_proto::pb::FILE_DESCRIPTOR_SET;

    use super::*;

    /// As `/package.Service/Method`.
    fn methods() -> Vec<String> {
        use prost_types::FileDescriptorSet;
        let set: FileDescriptorSet = prost::Message::decode(FILE_DESCRIPTOR_SET).unwrap();
        let services =
            set.file.iter().flat_map(|file| file.service.iter().map(move |service| (file.package(), service)));
        let paths = services.flat_map(|(package, service)| {
            service.method.iter().map(move |method| format!("/{package}.{}/{}", service.name(), method.name()))
        });
        paths.collect()
    }

    #[test]
    fn every_method_of_ours_needs_a_role() {
        let methods = methods();
        assert!(methods.len() >= 12, "{methods:?}");
        for method in methods {
            let reads = ["/Get", "/List", "/Watch", "History"].iter().any(|word| method.contains(word));
            let role = match needed(&method) {
                Needed::On(role) | Needed::OnAll(role) => role,
                open @ (Needed::Nothing | Needed::Identity) => panic!("{method}: {open:?}"),
            };
            let expected = match (method.contains(".RetryBudget/"), reads) {
                (true, _) => Role::Reserve,
                (false, true) => Role::Read,
                (false, false) => Role::Operate,
            };
            assert_eq!(role, expected, "{method}");
        }
    }

    #[test]
    fn what_is_not_known_is_closed() {
        for path in [
            "",
            "/",
            "x",
            "/x/y",
            "/retrybudget.v1.BudgetAdmin/New",
            "/retrybudget.v1.RetryBudget/New",
            "//grpc.health.v1.Health/Check",
            "/x/grpc.health.v1.Health/Check",
            "/retrybudget.v1.RetryBudget",
        ] {
            assert_eq!(needed(path), Needed::OnAll(Role::Operate), "{path}");
        }
        assert_eq!(needed("/grpc.health.v1.Health/Watch"), Needed::Nothing);
        assert_eq!(needed("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo"), Needed::Identity);
    }
}
