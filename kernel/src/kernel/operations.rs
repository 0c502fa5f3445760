//! What each operation means for memory: the same as on the simulated machine.

use core::ops::Range;

use shootdown_program::operation::{AreaId, Mapping, Operation};
use shootdown_program::step::{Step, StepError};
use shootdown_vm::{Access, Advice, Backing, FaultError, PAGE_BYTES, Place, Sharing};

use crate::kernel::by_address;
use crate::kernel::contents::{self, Holds, Known};
use crate::kernel::process::{NamedArea, Process};
use crate::kernel::user::touch;
use crate::kernel::world::World;

/// What a mapping shows.
pub(crate) type Backed = (Sharing, Backing<crate::kernel::platform::ThisMachine>);

impl World {
    /// Does what concerns memory.
    pub(crate) fn perform(
        &self,
        process: &Process,
        operation: Operation,
    ) -> Result<Step, StepError> {
        match self.try_to_perform(process, operation) {
            Err(error) if error.is_admitted(self.refusals) => {
                // Some of it may have been done.
                process.knows_nothing();
                Ok(Step::Done)
            }
            performed => performed,
        }
    }

    fn try_to_perform(&self, process: &Process, operation: Operation) -> Result<Step, StepError> {
        match operation {
            Operation::Touch { area, pages, access } => {
                for address in process.addresses(area, &pages)?.step_by(PAGE_BYTES as usize) {
                    match touch_named(process, area, address, access.into()) {
                        // The handler returns to what comes next.
                        Err(error) if error.is_admitted(self.refusals) => {}
                        touched => touched?,
                    }
                }
                return Ok(Step::Done);
            }
            Operation::Segfault { area, page } => {
                let page = process.addresses(area, &(page..page + 1))?;
                segfault(process, page.start)?;
                return Ok(Step::Done);
            }
            Operation::Map { .. }
            | Operation::Unmap { .. }
            | Operation::Protect { .. }
            | Operation::Discard { .. }
            | Operation::MovePages { .. } => {}
            Operation::ByAddress(operation) => {
                by_address::perform(process, operation)?;
                return Ok(Step::Done);
            }
            other => return Ok(Step::NotOfMemory(other)),
        }
        let space = process.space();
        match operation {
            Operation::Map { area, pages, permission, mapping } => {
                let place = Place::Anywhere { length: pages.saturating_mul(PAGE_BYTES) };
                let (sharing, backing) = self.backing(mapping);
                let start = space.map(place, permission.into(), sharing, backing)?;
                let (holds, known) = match mapping {
                    Mapping::Anonymous => (Holds::OwnWords, Known::default()),
                    _ => (Holds::AnyWords, Known::nothing()),
                };
                process.name(area, NamedArea { start, holds, known });
            }
            Operation::Unmap { area, pages } => {
                space.unmap(discarded(process, area, &pages)?)?;
            }
            Operation::Protect { area, pages, permission } => {
                let range = process.addresses(area, &pages)?;
                space.protect(range, permission.into())?;
            }
            Operation::Discard { area, pages } => {
                space.advise(discarded(process, area, &pages)?, Advice::DontNeed)?;
            }
            Operation::MovePages { area, pages, node } => {
                let range = process.addresses(area, &pages)?;
                // A node that is not there has no room, and there is but one.
                if node == 0 {
                    space.migrate(range, node)?;
                }
            }
            _ => {}
        }
        Ok(Step::Done)
    }

    fn backing(&self, mapping: Mapping) -> Backed {
        let file = |file| Backing::File { file: self.file(file), first_page: 0 };
        match mapping {
            Mapping::Anonymous => (Sharing::Private, Backing::Anonymous),
            Mapping::PrivateFile(id) => (Sharing::Private, file(id)),
            Mapping::SharedFile(id) => (Sharing::Shared, file(id)),
        }
    }
}

/// Uses a page of an area, which holds what it must.
fn touch_named(
    process: &Process,
    area: AreaId,
    address: u64,
    access: Access,
) -> Result<(), StepError> {
    // Before others may change it.
    let (holds, expected) =
        process.with_area(area, |area| (area.holds, area.known.expected(address)))?;
    let word = touch(process, address, access)?;
    if access == Access::Write {
        return process.with_area(area, |area| area.known.wrote(address, word));
    }
    // Unless another thread has used the area meanwhile.
    let is_known = process.with_area(area, |area| area.known.expected(address).is_some())?;
    contents::check(process, address, holds, expected.filter(|_| is_known), word);
    Ok(())
}

/// The addresses of pages that are about to lose what is in them.
fn discarded(process: &Process, id: AreaId, pages: &Range<u64>) -> Result<Range<u64>, StepError> {
    let range = process.addresses(id, pages)?;
    process.with_area(id, |area| area.known.discards(&range))?;
    Ok(range)
}

/// A write that is refused: the kernel finds that the area does not allow it, and the thread goes
/// on in its handler.
fn segfault(process: &Process, address: u64) -> Result<(), StepError> {
    match touch(process, address, Access::Write) {
        Err(StepError::Fault(FaultError::NotPermitted)) => Ok(()),
        Ok(_) => Err(StepError::NotRefused),
        Err(error) => Err(error),
    }
}
