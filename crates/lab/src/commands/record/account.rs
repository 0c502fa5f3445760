//! The user as which the command runs.

use std::ffi::OsString;
use std::path::PathBuf;

use uzers::os::unix::UserExt as _;

use super::error::RecordError;

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) uid: u32,
    pub(super) gid: u32,
    /// All groups of the user.
    pub(super) groups: Vec<u32>,
    name: OsString,
    home: PathBuf,
    shell: PathBuf,
}

impl Account {
    /// Returns the user of `--user`, or else the user that called `sudo`; `None` if the command
    /// runs as the recorder's user.
    ///
    /// # Errors
    ///
    /// If there is no such user.
    pub(super) fn find(option: Option<&str>) -> Result<Option<Self>, RecordError> {
        let by_sudo = || std::env::var("SUDO_UID").ok();
        let Some(user) = option.map(str::to_owned).or_else(by_sudo) else { return Ok(None) };
        let found = match user.parse() {
            Ok(uid) => uzers::get_user_by_uid(uid),
            Err(_) => uzers::get_user_by_name(&user),
        };
        let found = found.ok_or(RecordError::NoUser { user })?;
        let (uid, gid) = (found.uid(), found.primary_group_id());
        if uid == rustix::process::getuid().as_raw() {
            return Ok(None);
        }
        let groups = uzers::get_user_groups(found.name(), gid).unwrap_or_default();
        Ok(Some(Self {
            uid,
            gid,
            groups: groups.iter().map(uzers::Group::gid).collect(),
            name: found.name().to_owned(),
            home: found.home_dir().to_owned(),
            shell: found.shell().to_owned(),
        }))
    }

    /// Returns the variables of the environment that describe the user.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 4] {
        [
            ("HOME", self.home.clone().into()),
            ("USER", self.name.clone()),
            ("LOGNAME", self.name.clone()),
            ("SHELL", self.shell.clone().into()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_found_by_name_or_number() {
        let by_name = Account::find(Some("nobody")).expect("a user");
        if rustix::process::getuid().is_root() {
            let account = by_name.clone().expect("another user");
            assert_eq!(Account::find(Some(&account.uid.to_string())).expect("a user"), by_name);
            assert!(account.groups.contains(&account.gid));
        }
        assert!(matches!(
            Account::find(Some("no such user")),
            Err(RecordError::NoUser { user }) if user == "no such user"
        ));
    }
}
