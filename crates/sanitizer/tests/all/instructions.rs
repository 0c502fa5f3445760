//! The invalidating instructions of each architecture, by their encodings.

use shootdown_sanitizer::arch::{Context, Effect, Operand, Operation, named};
use shootdown_sanitizer::invalidation::{Invalidation, Pages, Pointers, Tags};
use shootdown_sanitizer::translation::Tag;

/// Decodes an instruction, and executes it with these operands.
fn effect(arch: &str, bytes: &[u8], operands: [u64; 2], context: &Context) -> Option<Effect> {
    let arch = named(arch).expect("it is known");
    let instruction = arch.decode(bytes, 0x1000)?;
    // The descriptor of INVPCID: PCID 3, address 0x7000.
    let read = |address| Some(if address == 0x100 { 3 } else { 0x7000 });
    Some(arch.execute(instruction.operation, operands, context, &read))
}

fn x86(bytes: &[u8], operands: [u64; 2], cr4: u64) -> Option<Invalidation> {
    let arch = named("x86_64").expect("it is known");
    let context = arch.context(&[1 << 31, 0x1005, cr4, 1 << 10]);
    effect("x86_64", bytes, operands, &context).and_then(|effect| effect.invalidation)
}

const PCIDE: u64 = 1 << 17;
const PGE: u64 = 1 << 7;

#[test]
fn x86_forms_invalidate_what_sdm_says() {
    let cr3 = [0x0f, 0x22, 0xd8];
    let whole = |tags| Some(Invalidation::whole(tags));
    assert_eq!(x86(&cr3, [0x2000, 0], 0), whole(Tags::AllButGlobal));
    assert_eq!(x86(&cr3, [0x2007, 0], PCIDE), whole(Tags::One(7)));
    assert_eq!(x86(&cr3, [0x2007 | 1 << 63, 0], PCIDE), None);
    let cr4 = [0x0f, 0x22, 0xe0];
    assert_eq!(x86(&cr4, [0, 0], PGE), whole(Tags::All));
    assert_eq!(x86(&cr4, [PGE, 0], PGE), None);
    assert_eq!(x86(&cr4, [PGE, 0], PGE | PCIDE), whole(Tags::All));
    assert_eq!(x86(&[0x0f, 0x22, 0xc0], [0, 0], 0), whole(Tags::All));
    let invlpg = Some(Invalidation::page(Tags::OneAndGlobal(5), 0x7000, Pointers::All));
    assert_eq!(x86(&[0x0f, 0x01, 0x38], [0x7000, 0], PCIDE), invlpg);
    let invpcid = [0x66, 0x0f, 0x38, 0x82, 0x08];
    let page = Some(Invalidation::page(Tags::One(3), 0x7000, Pointers::All));
    assert_eq!(x86(&invpcid, [0, 0x100], PCIDE), page);
    assert_eq!(x86(&invpcid, [1, 0x100], PCIDE), whole(Tags::One(3)));
    assert_eq!(x86(&invpcid, [2, 0x100], PCIDE), whole(Tags::All));
    assert_eq!(x86(&invpcid, [3, 0x100], PCIDE), whole(Tags::AllButGlobal));
    // NOP, SWAPGS, and a load of CR3.
    for other in [&[0x90][..], &[0x0f, 0x01, 0xf8], &[0x0f, 0x20, 0xd8]] {
        assert_eq!(x86(other, [0, 0], 0), None);
    }
}

#[test]
fn tags_include_global_entries_by_form() {
    let of = |tags: Tags| [Tag::Global, Tag::Space(3), Tag::Space(4)].map(|tag| tags.include(tag));
    assert_eq!(of(Tags::All), [true, true, true]);
    assert_eq!(of(Tags::AllButGlobal), [false, true, true]);
    assert_eq!(of(Tags::One(3)), [false, true, false]);
    assert_eq!(of(Tags::OneAndGlobal(3)), [true, true, false]);
}

#[test]
fn x86_operands_are_decoded_in_all_forms() {
    let arch = named("x86_64").expect("it is known");
    let operand = |bytes: &[u8]| arch.decode(bytes, 0x1000).expect("INVLPG").operands[0];
    let address = |base, index, displacement, segment| Operand::Address {
        base,
        index,
        displacement,
        segment,
    };
    assert_eq!(operand(&[0x0f, 0x01, 0x3f]), address(Some(7), None, 0, None));
    assert_eq!(operand(&[0x41, 0x0f, 0x01, 0x7d, 0xf0]), address(Some(13), None, -16, None));
    assert_eq!(operand(&[0x0f, 0x01, 0x3c, 0x24]), address(Some(4), None, 0, None));
    // [r9 + r10 * 8 + 0x100]
    let indexed = [0x43, 0x0f, 0x01, 0xbc, 0xd1, 0x00, 0x01, 0x00, 0x00];
    assert_eq!(operand(&indexed), address(Some(9), Some((10, 3)), 0x100, None));
    let relative = [0x0f, 0x01, 0x3d, 0x10, 0x00, 0x00, 0x00];
    assert_eq!(operand(&relative), address(None, None, 0x1017, None));
    let of_gs = [0x65, 0x0f, 0x01, 0x3c, 0x25, 0x08, 0x00, 0x00, 0x00];
    assert_eq!(operand(&of_gs), address(None, None, 8, Some("gs_base")));
}

fn riscv(word: u32, operands: [u64; 2]) -> Option<Effect> {
    effect("riscv64", &word.to_le_bytes(), operands, &Context::default())
}

#[test]
fn riscv_fences_invalidate_by_operands() {
    let form =
        |tags, pages, pointers| Some(Invalidation { tags, pages, pointers, only_shift: None });
    let fence = |word, operands| riscv(word, operands).expect("a fence").invalidation;
    let page = Pages::Range(0x7000, 0x7000);
    // x0, x0; a0, x0; x0, a1; a0, a1.
    let all = form(Tags::All, Pages::All, Pointers::All);
    assert_eq!(fence(0x1200_0073, [0, 0]), all);
    assert_eq!(fence(0x1205_0073, [0x7000, 0]), form(Tags::All, page, Pointers::Kept));
    assert_eq!(fence(0x12b0_0073, [0, 9]), form(Tags::One(9), Pages::All, Pointers::All));
    assert_eq!(fence(0x12b5_0073, [0x7000, 9]), form(Tags::One(9), page, Pointers::Kept));
    // SINVAL.VMA a0, a1; then SFENCE.W.INVAL and ECALL, which invalidate nothing.
    assert_eq!(fence(0x16b5_0073, [0x7000, 9]), form(Tags::One(9), page, Pointers::Kept));
    assert!(riscv(0x1800_0073, [0, 0]).is_none() && riscv(0x73, [0, 0]).is_none());
}

#[test]
fn riscv_root_drops_nothing() {
    // csrw satp, a0
    let effect = riscv(0x1805_1073, [0, 0]).expect("it selects tables");
    assert!(effect.selects_tables && effect.invalidation.is_none());
}

fn arm(word: u32, operand: u64) -> Effect {
    let arch = named("aarch64").expect("it is known");
    let context = arch.context(&[1, 0, 0, 16 | 16 << 16 | 2 << 30]);
    effect("aarch64", &word.to_le_bytes(), [operand, 0], &context).expect("a TLBI")
}

/// TLBI with register x0.
fn tlbi(crm: u32, op2: u32) -> u32 {
    0xd508_8000 | crm << 8 | op2 << 5
}

#[test]
fn arm_forms_have_scope_tag_level() {
    let form =
        |tags, pages, pointers| Some(Invalidation { tags, pages, pointers, only_shift: None });
    let operand = 9 << 48 | 0x7;
    let page = Pages::Range(0x7000, 0x7fff);
    let all = arm(tlbi(3, 0), 0);
    assert_eq!(all.invalidation, form(Tags::All, Pages::All, Pointers::All));
    assert!(all.is_broadcast && !arm(tlbi(7, 0), 0).is_broadcast);
    let by_tag = arm(tlbi(3, 2), 9 << 48).invalidation;
    assert_eq!(by_tag, form(Tags::One(9), Pages::All, Pointers::All));
    let va = arm(tlbi(3, 1), operand).invalidation;
    assert_eq!(va, form(Tags::OneAndGlobal(9), page, Pointers::OnTheWay));
    let last = arm(tlbi(3, 5), operand).invalidation;
    assert_eq!(last, form(Tags::OneAndGlobal(9), page, Pointers::Kept));
    let any_tag = arm(tlbi(3, 7), operand).invalidation;
    assert_eq!(any_tag, form(Tags::All, page, Pointers::Kept));
    // Level 2 of 4 KiB: only pages of 2 MiB.
    let hinted = arm(tlbi(3, 5), operand | 0b0110 << 44).invalidation.expect("one");
    assert_eq!(hinted.only_shift, Some(21));
}

#[test]
fn arm_range_covers_pages_of_its_operand() {
    // 4 KiB, scale 0, number 1: four pages from 0x7000 on.
    let operand = 9 << 48 | 1 << 46 | 1 << 39 | 7;
    let range = arm(tlbi(2, 5), operand);
    let invalidation = range.invalidation.expect("one");
    assert_eq!(invalidation.pages, Pages::Range(0x7000, 0xafff));
    assert!(range.is_broadcast && !arm(tlbi(6, 5), operand).is_broadcast);
    // An address of the kernel, with scale 1: 2 << 6 pages.
    let base = (0xffff_8000_0000_0000_u64 >> 12) & ((1 << 37) - 1);
    let kernel = arm(tlbi(2, 5), 1 << 46 | 1 << 44 | 1 << 39 | base).invalidation.expect("one");
    let last = 0xffff_8000_0000_0000 + (128 << 12) - 1;
    assert_eq!(kernel.pages, Pages::Range(0xffff_8000_0000_0000, last));
}

#[test]
fn arm_root_is_selected_and_drops_nothing() {
    // msr ttbr0_el1, x0, and msr tcr_el1, x0; then msr sp_el0, x0.
    for word in [0xd518_2000_u32, 0xd518_2040] {
        let effect = arm(word, 0);
        assert!(effect.selects_tables && effect.invalidation.is_none());
    }
    let arch = named("aarch64").expect("it is known");
    assert_eq!(arch.decode(&0xd518_4100_u32.to_le_bytes(), 0), None);
}

#[test]
fn encodings_of_one_architecture_are_not_those_of_another() {
    let riscv = named("riscv64").expect("it is known");
    assert_eq!(riscv.decode(&tlbi(3, 0).to_le_bytes(), 0), None);
    let fence = riscv.decode(&0x1200_0073_u32.to_le_bytes(), 0).expect("a fence");
    assert_eq!(fence.operation, Operation::Fence { has_page: false, has_tag: false });
}

#[test]
fn calls_are_known_by_their_last_bytes() {
    let is_call = |arch: &str, bytes: &[u8]| {
        let mut before = [0x90; 8];
        before[8 - bytes.len()..].copy_from_slice(bytes);
        named(arch).expect("it is known").is_call(before)
    };
    // call rel32; call *%rax; call *8(%rbx); call *sym(%rip); ret; jmp *%rax.
    let calls: [&[u8]; 4] =
        [&[0xe8, 0, 0, 0, 0], &[0xff, 0xd0], &[0xff, 0x53, 8], &[0xff, 0x15, 0, 0, 0, 0]];
    assert!(calls.iter().all(|call| is_call("x86_64", call)));
    assert!(!is_call("x86_64", &[0xc3]) && !is_call("x86_64", &[0xff, 0xe0]));
    // bl; blr x8; b; br x8.
    for (word, expected) in
        [(0x9400_0010u32, true), (0xd63f_0100, true), (0x1400_0010, false), (0xd61f_0100, false)]
    {
        assert_eq!(is_call("aarch64", &word.to_le_bytes()), expected, "{word:#x}");
    }
    // jal ra; jalr ra, s1; c.jalr s1; j; c.jr s1; c.ebreak.
    assert!(
        is_call("riscv64", &0x0100_00efu32.to_le_bytes())
            && is_call("riscv64", &0x0004_80e7u32.to_le_bytes())
    );
    assert!(
        is_call("riscv64", &0x9482u16.to_le_bytes())
            && !is_call("riscv64", &0x0000_006fu32.to_le_bytes())
    );
    assert!(
        !is_call("riscv64", &0x8482u16.to_le_bytes())
            && !is_call("riscv64", &0x9002u16.to_le_bytes())
    );
}
