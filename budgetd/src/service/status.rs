//! Failures as gRPC statuses. A refusal is none.

use budget::ids::DependencyId;
use tonic::Status;

use crate::{policies::PoliciesError, store::StoreError};

pub(super) fn of_store(error: &StoreError, dependency: &DependencyId) -> Status {
    match error {
        StoreError::UnknownDependency(rule) => Status::not_found(rule),
        StoreError::Away(_) | StoreError::Lost(_) | StoreError::NeverReached(_) => {
            Status::unavailable(error.to_string())
        }
        StoreError::Overloaded => Status::resource_exhausted(format!("budgetd is overloaded: {error}")),
        StoreError::DeadlinePassed | StoreError::Late => Status::deadline_exceeded(error.to_string()),
        StoreError::Refused(rule) => Status::invalid_argument(rule),
        StoreError::Corrupt(why) => {
            Status::internal(format!("state of dependency {:?} is corrupt: {why}", dependency.as_str()))
        }
    }
}

pub(super) fn of_policies(error: &PoliciesError) -> Status {
    let text = error.to_string();
    match error {
        PoliciesError::Invalid(_) | PoliciesError::Target { .. } | PoliciesError::Range { .. } => {
            Status::invalid_argument(text)
        }
        PoliciesError::NoSuchRule(_) => Status::not_found(text),
        PoliciesError::Conflict { .. } | PoliciesError::Contended => Status::aborted(text),
        PoliciesError::File(_) | PoliciesError::Document { .. } | PoliciesError::Managed { .. } => {
            Status::failed_precondition(text)
        }
        PoliciesError::Random(_) => Status::internal(text),
        PoliciesError::Store(error) => match error {
            StoreError::Overloaded => Status::resource_exhausted(text),
            StoreError::DeadlinePassed | StoreError::Late => Status::deadline_exceeded(text),
            StoreError::Corrupt(_) | StoreError::UnknownDependency(_) | StoreError::Refused(_) => {
                Status::internal(text)
            }
            StoreError::Away(_) | StoreError::Lost(_) | StoreError::NeverReached(_) => Status::unavailable(text),
        },
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a24_whoever_is_late_learns_just_that() {
        let name = DependencyId::new("pay").unwrap();
        for late in [StoreError::DeadlinePassed, StoreError::Late] {
            assert_eq!(of_store(&late, &name).code(), Code::DeadlineExceeded);
            assert_eq!(of_policies(&PoliciesError::Store(late)).code(), Code::DeadlineExceeded);
        }
        assert_eq!(of_store(&StoreError::Lost("no reply".to_owned()), &name).code(), Code::Unavailable);
    }
}
