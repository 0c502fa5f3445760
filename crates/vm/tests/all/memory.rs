//! Lack of memory at every allocation of a program.

use std::sync::Arc;

use crate::platform::*;
use shootdown_vm::{
    Access, AddressSpace, Advice, Backing, FaultError, File, OutOfMemory, Place, Sharing,
};

type OurSpace = Space<RELEASED, AT_WAIT>;

/// A program with all operations that allocate memory. It checks the values that it reads.
fn program(space: &OurSpace, file: &Arc<File<Host>>) -> Result<(), OutOfMemory> {
    let file_backing = || Backing::File { file: Arc::clone(file), first_page: 0 };
    for (first, sharing, backing) in [
        (0, Sharing::Private, Backing::Anonymous),
        (46, Sharing::Private, Backing::Anonymous),
        (60, Sharing::Shared, Backing::Anonymous),
        (70, Sharing::Shared, file_backing()),
        (80, Sharing::Private, file_backing()),
    ] {
        space.map(Place::Fixed(pages(first, 4)), READ_WRITE, sharing, backing).unwrap();
    }
    for page in [0, 46, 48, 60, 70, 80] {
        touch(space, page, Access::Write, page + 1)?;
        touch(space, page + 1, Access::Read, 0)?;
    }
    touch(space, 1, Access::Write, 2)?;
    assert_eq!(touch(space, 0, Access::Read, 0)?, 1);

    let child = space.fork()?;
    let result = forked(space, &child);
    child.exit();
    result?;
    space.advise(pages(0, 2), Advice::DontNeed).unwrap();
    assert_eq!(touch(space, 0, Access::Read, 0)?, 0);
    space.unmap(pages(40, 20)).unwrap();
    Ok(())
}

fn forked(space: &OurSpace, child: &OurSpace) -> Result<(), OutOfMemory> {
    touch(space, 0, Access::Write, 50)?;
    touch(child, 0, Access::Write, 60)?;
    touch(child, 60, Access::Write, 61)?;
    assert_eq!(touch(space, 0, Access::Read, 0)?, 50);
    assert_eq!(touch(child, 0, Access::Read, 0)?, 60);
    assert_eq!(touch(child, 1, Access::Read, 0)?, 2);
    assert_eq!(touch(space, 60, Access::Read, 0)?, 61);
    let grandchild = child.fork()?;
    grandchild.exit();
    Ok(())
}

fn touch(space: &OurSpace, page: u64, how: Access, value: u64) -> Result<u64, OutOfMemory> {
    access(space, 0, pages(page, 1).start, how, value).map_err(|error| {
        assert_eq!(error, FaultError::OutOfMemory);
        OutOfMemory
    })
}

#[test]
fn failed_allocation_loses_nothing() {
    let mut failures = 0;
    loop {
        let host = Host::new(256, 1);
        let space = AddressSpace::new(&system(&host)).unwrap();
        let file = Arc::new(File::new(host.clone()));
        host.limit_allocations(failures);
        let result = program(&space, &file);
        host.check_caches();
        host.limit_allocations(u64::MAX);
        if result.is_err() {
            space.unmap(pages(0, PAGES)).unwrap();
            assert_eq!(host.tables_in_use(), 1, "tables besides the root are left");
            assert_eq!(program(&space, &file), Ok(()));
        }
        space.exit();
        drop(file);
        assert_eq!(host.frames_in_use(), 1, "frames are lost with {failures} allocations");
        if result.is_ok() {
            break;
        }
        failures += 1;
    }
    assert!(failures > 20, "the program allocates only {failures} times");
}

#[test]
fn mapped_pages_are_counted_without_page_of_zeros() {
    let host = Host::new(64, 1);
    let space: OurSpace = AddressSpace::new(&system(&host)).unwrap();
    let place = Place::Fixed(pages(0, 4));
    space.map(place, READ_WRITE, Sharing::Private, Backing::Anonymous).unwrap();
    for (page, how) in [(0, Access::Write), (1, Access::Write), (2, Access::Read)] {
        touch(&space, page, how, 7).unwrap();
    }
    let child = space.fork().unwrap();
    let counts = || [&space, &child].map(|space| host.resident(space.root()));
    assert_eq!(counts(), [2, 2]);
    for page in [0, 2] {
        touch(&child, page, Access::Write, 8).unwrap();
    }
    space.advise(pages(0, 1), Advice::DontNeed).unwrap();
    assert_eq!(counts(), [1, 3]);
    space.remap(pages(0, 4), pages(20, 2)).unwrap();
    child.unmap(pages(0, 4)).unwrap();
    assert_eq!(counts(), [1, 0]);
    child.exit();
}

#[test]
fn space_without_memory_for_root_fails() {
    let host = Host::new(64, 1);
    let vm = system::<RELEASED, AT_WAIT>(&host);
    host.limit_allocations(0);
    assert_eq!(OurSpace::new(&vm).map(drop), Err(OutOfMemory));
    assert_eq!(host.frames_in_use(), 1);
}
