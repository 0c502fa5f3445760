//! Walks of page tables: levels, page sizes, permissions and tags.

use std::collections::HashMap;

use shootdown_sanitizer::arch::{Context, named};
use shootdown_sanitizer::translation::{Access, Tag, Translation};

/// Translates an address with these words of memory.
fn walk(arch: &str, registers: &[u64], words: &[(u64, u64)], address: u64) -> Option<Translation> {
    let arch = named(arch).expect("it is known");
    let words: HashMap<u64, u64> = words.iter().copied().collect();
    let context: Context = arch.context(registers);
    assert!(context.is_on);
    arch.walk(&context, address, &|at| Some(words.get(&at).copied().unwrap_or(0)))
}

const LA57: u64 = 1 << 12;

#[test]
fn x86_has_four_or_five_levels() {
    let four = [(0x1000, 0x2007), (0x2000, 0x3007), (0x3000, 0x4007), (0x4008, 0x9007)];
    let found = walk("x86_64", &[1 << 31, 0x1000, 0, 1 << 10], &four, 0x1234).expect("a page");
    assert_eq!((found.frame, found.shift, found.entry), (0x9000, 12, 0x4008));
    assert_eq!(found.pointers().map(|pointer| pointer.shift).collect::<Vec<_>>(), [39, 30, 21]);
    let five = [&four[..], &[(0x8000, 0x1007)]].concat();
    let found = walk("x86_64", &[1 << 31, 0x8000, LA57, 1 << 10], &five, 0x1234).expect("a page");
    assert_eq!((found.frame, found.pointers().count()), (0x9000, 4));
    assert!(walk("x86_64", &[1 << 31, 0x8000, 0, 1 << 10], &five, 0x1234).is_none());
}

#[test]
fn x86_permissions_are_those_of_all_levels() {
    let no_execute = 1 << 63;
    let words = [(0x1000, 0x2005), (0x2000, 0x3007), (0x3000, 0x40_0087 | no_execute)];
    let found = walk("x86_64", &[1 << 31, 0x1000, 0, 1 << 10], &words, 0x1000).expect("a page");
    assert_eq!((found.shift, found.frame, found.tag), (21, 0x40_0000, Tag::Space(0)));
    assert_eq!(found.access, Access::READ | Access::USER);
}

#[test]
fn svnapot_page_has_frame_of_its_address() {
    let napot = 1 << 63 | 0x9_8000 >> 12 << 10 | 0x13;
    let words = [(0x1000, 0x801), (0x2000, 0xc01), (0x3000, napot), (0x3078, napot)];
    let frame = |address| walk("riscv64", &[8 << 60 | 1], &words, address).expect("a page").frame;
    assert_eq!([frame(0x0), frame(0xf000)], [0x9_0000, 0x9_f000]);
}

#[test]
fn riscv_modes_and_global_subtrees() {
    let table = |address: u64| address >> 12 << 10 | 1;
    let page = |address: u64, bits: u64| address >> 12 << 10 | bits;
    // Sv39 with ASID 9: a page of 2 MiB, below a global table.
    let satp = 8 << 60 | 9 << 44 | 1;
    let words = [(0x1000, table(0x2000) | 1 << 5), (0x2008, page(0x40_0000, 0x0f))];
    let found = walk("riscv64", &[satp], &words, 0x20_1000).expect("a page");
    assert_eq!((found.shift, found.frame, found.tag), (21, 0x40_0000, Tag::Global));
    // Sv48 and Sv57 have a level more each.
    let deep = [
        (0x1000, table(0x2000)),
        (0x2000, table(0x3000)),
        (0x3000, table(0x4000)),
        (0x4000, table(0x5000)),
        (0x5008, page(0x9000, 0x13)),
    ];
    let found = walk("riscv64", &[10 << 60 | 9 << 44 | 1], &deep, 0x1000).expect("a page");
    assert_eq!((found.frame, found.tag), (0x9000, Tag::Space(9)));
    assert_eq!(found.access, Access::READ | Access::USER);
    let found = walk("riscv64", &[9 << 60 | 2], &deep, 0x1000).expect("a page");
    assert_eq!(found.pointers().count(), 3);
}

#[test]
fn arm_granules_halves_and_tags() {
    let not_global = 1 << 11;
    let leaf = |address: u64| address | 3 | not_global | 1 << 6;
    // 4 KiB, 48 bits, ASID 7 in TTBR0.
    let tcr = 16 | 16 << 16 | 2 << 30 | 1 << 36;
    let words = [
        (0x1_0000, 0x2_0003),
        (0x2_0000, 0x3_0003),
        (0x3_0000, 0x4_0003),
        (0x4_0008, leaf(0x9000)),
    ];
    let registers = [1, 7 << 48 | 0x1_0000, 0, tcr];
    let found = walk("aarch64", &registers, &words, 0x1000).expect("a page");
    assert_eq!((found.frame, found.shift, found.tag), (0x9000, 12, Tag::Space(7)));
    // The kernel's half, and a page of 2 MiB there, which is global.
    let words = [(0x1_0800, 0x2_0003), (0x2_0000, 0x3_0003), (0x3_0000, 0x40_0001)];
    let kernel = walk("aarch64", &[1, 0, 0x1_0000, tcr], &words, 0xffff_8000_0000_0000);
    let kernel = kernel.expect("a page");
    assert_eq!((kernel.shift, kernel.frame, kernel.tag), (21, 0x40_0000, Tag::Global));
    // 64 KiB with 48 bits: three levels, the root with 64 entries. 16 KiB with 47: three.
    let words = [(0x1_0000, 0x2_0003), (0x2_0000, 0x3_0003), (0x3_0008, leaf(0x9_0000))];
    let with_64k = [1, 0x1_0000, 0, 16 | 1 << 14];
    let found = walk("aarch64", &with_64k, &words, 0x1_0000).expect("a page");
    assert_eq!((found.frame, found.shift, found.pointers().count()), (0x9_0000, 16, 2));
    let with_16k = [1, 0x1_0000, 0, 17 | 2 << 14];
    let found = walk("aarch64", &with_16k, &words, 0x4000).expect("a page");
    assert_eq!((found.shift, found.pointers().count()), (14, 2));
}

#[test]
fn translation_that_is_off_is_not_walked() {
    for (name, registers) in
        [("x86_64", &[0, 0x1000, 0, 0][..]), ("riscv64", &[0]), ("aarch64", &[0, 0, 0, 0])]
    {
        assert!(!named(name).expect("it is known").context(registers).is_on, "{name}");
    }
}
