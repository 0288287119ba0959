//! The end of a membership whose token bounds it.

use std::time::Duration;

use crate::identity::certificate::peer::PeerIdentity;
use crate::world::WallClock;

/// How often the calendar is read. A single timer would miss that the calendar was set, or that the machine slept.
const CALENDAR_CHECK: Duration = Duration::from_secs(60);

/// The reason with which the connection of a member is closed when its time is over.
pub const MEMBERSHIP_OVER: &[u8] = b"the time for which its token let it stay is over";

/// Returns when the membership of this peer is over: never if its token does not bound it.
pub async fn membership_over(wall: &dyn WallClock, identity: &PeerIdentity) {
    let Some(end) = identity.budget.until else {
        return std::future::pending().await;
    };
    loop {
        let left = end.saturating_sub(wall.unix_seconds());
        if left == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_secs(left).min(CALENDAR_CHECK)).await;
    }
}
