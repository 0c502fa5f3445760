//! Releases of Linux, and the model that is closest to each.

use super::v7_0::v6_12::CLEARED_AT_FLUSH;
use crate::design::Design;

impl Design {
    /// Returns the model of Linux that is closest to a release, such as `6.12.38+deb13-amd64`. That
    /// of a release which cannot be read is the latest.
    #[must_use]
    pub fn closest_to(release: &str) -> Self {
        match version(release) {
            Some(version) if version < CLEARED_AT_FLUSH => Self::LINUX_6_12,
            _ => Self::LINUX_7_0,
        }
    }
}

/// Returns the major and the minor version of a release of Linux.
#[must_use]
pub fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|it: char| !it.is_ascii_digit()).map(|it| it.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}
