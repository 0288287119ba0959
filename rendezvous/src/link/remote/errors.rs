//! The errors of links that cannot be made, or that the peer refuses.

use convoke_common::detection::WatchedConnection;
use convoke_common::error::{Code, Error};
use convoke_common::rpc::close;
use quinn::ConnectionError;

/// The error of a peer that does not greet on a new lane.
pub(super) fn lane_error(e: impl std::fmt::Display) -> Error {
    Error::new(Code::PeerLost, format!("it did not greet: {e}"))
}

/// Why the peer closed the connection, where it refused what was asked of it.
pub(super) fn refusal(watched: &WatchedConnection, name: &str) -> Option<Error> {
    let why = watched.connection().close_reason()?;
    let ConnectionError::ApplicationClosed(closed) = &why else {
        return None;
    };
    let code = match u32::try_from(closed.error_code.into_inner()).ok()? {
        close::NO_MEMORY => Code::OutOfMemory,
        close::REFUSED => Code::Busy,
        _ => return None,
    };
    let msg = format!("{name} refused the connection: {}", watched.ended()?);
    Some(refused(code, name, msg))
}

/// The error of a worker that refused a connection.
pub(super) fn refused(code: Code, name: &str, message: String) -> Error {
    let error = Error::new(code, message).about(name);
    error.advise("`convoke status` says what each token has")
}
