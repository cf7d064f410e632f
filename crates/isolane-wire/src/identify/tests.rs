//! Golden vectors of the Identify structures. Offsets and bytes come from the figures of Base 1.4
//! §5.15.2 (and Base 2.0 §5.17.2), not from the tables of the code.

use super::*;
use crate::{Ascii, Nqn, golden, registers::Vs};

#[test]
fn controller_has_each_field_in_its_place() {
    let subnqn = Nqn::new("nqn.2014-08.org.example:disk").unwrap();
    let mut controller = Controller {
        sn: Ascii::lossy("serial"),
        mn: Ascii::lossy("model"),
        fr: Ascii::lossy("1.2.3"),
        subnqn: subnqn.into(),
        psd: [PowerState::default(); 32],
        vid: 0x0a03,
        ssvid: 0x1811,
        rab: 0xfb,
        ieee: [0x02, 0x09, 0x10],
        cmic: Cmic(0x17),
        mdts: 0x1e,
        cntlid: 0x2c25,
        ver: Vs(0x4841_3a33),
        rtd3r_us: 0x645d_564f,
        rtd3e_us: 0x8079_726b,
        oaes: Oaes(0x9c95_8e87),
        ctratt: Ctratt(0xb8b1_aaa3),
        rrls: 0xc6bf,
        cntrltype: 0x0c,
        fguid: [
            0x13, 0x1a, 0x21, 0x28, 0x2f, 0x36, 0x3d, 0x44, 0x4b, 0x52, 0x59, 0x60, 0x67, 0x6e, 0x75, 0x7c,
        ],
        crdt: [0x8a83, 0x9891, 0xa69f],
        nvmsr: 0xee,
        vwci: 0xf5,
        mec: 0xfc,
        oacs: Oacs(0x2720),
        acl: 0x2e,
        aerl: 0x35,
        frmw: 0x3c,
        lpa: LogPageAttributes(0x43),
        elpe: 0x4a,
        npss: 0x51,
        avscc: 0x58,
        apsta: 0x5f,
        wctemp_kelvin: 0x6d66,
        cctemp_kelvin: 0x7b74,
        mtfa: 0x8982,
        hmpre: 0xa59e_9790,
        hmmin: 0xc1ba_b3ac,
        tnvmcap_bytes: 0x312a_231c_150e_07a5_f9f2_ebe4_ddd6_cfc8,
        unvmcap_bytes: 0xa19a_938c_857e_7770_6962_5b54_4d46_3f38,
        rpmbs: 0xbdb6_afa8,
        edstt: 0xcbc4,
        dsto: 0xd2,
        fwug: 0xd9,
        kas: 0xe7e0,
        hctma: 0xf5ee,
        mntmt_kelvin: 0x03fc,
        mxtmt_kelvin: 0x110a,
        sanicap: 0x2d26_1f18,
        hmminds: 0x4942_3b34,
        hmmaxd: 0x5750,
        nsetidmax: 0x655e,
        endgidmax: 0x736c,
        anatt_s: 0x7a,
        anacap: 0x81,
        anagrpmax: 0x9d96_8f88,
        nanagrpid: 0xb9b2_aba4,
        pels: 0xd5ce_c7c0,
        did: 0xe3dc,
        cqt_ms: 0xb5ae,
        sqes: 0x3d,
        cqes: 0x44,
        maxcmd: 0x524b,
        nn: 0x6e67_6059,
        oncs: Oncs(0x7c75),
        fuses: 0x8a83,
        fna: Fna(0x91),
        vwc: VolatileCache(0x98),
        awun: 0xa69f,
        awupf: 0xb4ad,
        nvscc: 0xbb,
        nwpc: 0xc2,
        acwu: 0xd0c9,
        ocfs: 0xded7,
        sgls: SglSupport(0xfaf3_ece5),
        mnan: 0x160f_0801,
        ioccsz: 0xe3dc_d5ce,
        iorcsz: 0xfff8_f1ea,
        icdoff: 0x0d06,
        fcatt: Fcatt(0x14),
        msdbd: 0x1b,
        ofcs: Ofcs(0x2922),
        dctype: 0x30,
        vendor_signature: crate::log::SIGNATURE,
        vendor_pages: VendorPages(0).with_generation(true),
    };
    controller.psd[1] = power_state();
    let spaces = [b' '; 40];
    let bytes = golden::bytes::<4096>(&[
        (4, b"serial"),
        (10, &spaces[..14]),
        (24, b"model"),
        (29, &spaces[..35]),
        (64, b"1.2.3   "),
        (768, b"nqn.2014-08.org.example:disk"),
        (
            3072,
            &[
                0xaa, 0x11, 0xf7, 0x01, 0x1d, 0x63, 0x43, 0x4c, 0xb2, 0xd8, 0x84, 0xdf, 0x28, 0xad, 0x65,
                0xe2, 1,
            ],
        ),
        (2080, &[1, 2, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        (0, &[0x03, 0x0a, 0x11, 0x18]),
        (
            72,
            &[0xfb, 0x02, 0x09, 0x10, 0x17, 0x1e, 0x25, 0x2c, 0x33, 0x3a, 0x41, 0x48, 0x4f, 0x56, 0x5d, 0x64],
        ),
        (88, &[0x6b, 0x72, 0x79, 0x80, 0x87, 0x8e, 0x95, 0x9c, 0xa3, 0xaa, 0xb1, 0xb8, 0xbf, 0xc6]),
        (
            111,
            &[
                0x0c, 0x13, 0x1a, 0x21, 0x28, 0x2f, 0x36, 0x3d, 0x44, 0x4b, 0x52, 0x59, 0x60, 0x67, 0x6e,
                0x75, 0x7c,
            ],
        ),
        (128, &[0x83, 0x8a, 0x91, 0x98, 0x9f, 0xa6]),
        (
            253,
            &[
                0xee, 0xf5, 0xfc, 0x20, 0x27, 0x2e, 0x35, 0x3c, 0x43, 0x4a, 0x51, 0x58, 0x5f, 0x66, 0x6d,
                0x74, 0x7b,
            ],
        ),
        (
            270,
            &[
                0x82, 0x89, 0x90, 0x97, 0x9e, 0xa5, 0xac, 0xb3, 0xba, 0xc1, 0xc8, 0xcf, 0xd6, 0xdd, 0xe4,
                0xeb, 0xf2, 0xf9, 0xa5, 0x07, 0x0e, 0x15, 0x1c, 0x23, 0x2a, 0x31,
            ],
        ),
        (
            296,
            &[0x38, 0x3f, 0x46, 0x4d, 0x54, 0x5b, 0x62, 0x69, 0x70, 0x77, 0x7e, 0x85, 0x8c, 0x93, 0x9a, 0xa1],
        ),
        (
            312,
            &[0xa8, 0xaf, 0xb6, 0xbd, 0xc4, 0xcb, 0xd2, 0xd9, 0xe0, 0xe7, 0xee, 0xf5, 0xfc, 0x03, 0x0a, 0x11],
        ),
        (
            328,
            &[0x18, 0x1f, 0x26, 0x2d, 0x34, 0x3b, 0x42, 0x49, 0x50, 0x57, 0x5e, 0x65, 0x6c, 0x73, 0x7a, 0x81],
        ),
        (344, &[0x88, 0x8f, 0x96, 0x9d, 0xa4, 0xab, 0xb2, 0xb9, 0xc0, 0xc7, 0xce, 0xd5, 0xdc, 0xe3]),
        (386, &[0xae, 0xb5]),
        (
            512,
            &[0x3d, 0x44, 0x4b, 0x52, 0x59, 0x60, 0x67, 0x6e, 0x75, 0x7c, 0x83, 0x8a, 0x91, 0x98, 0x9f, 0xa6],
        ),
        (
            528,
            &[0xad, 0xb4, 0xbb, 0xc2, 0xc9, 0xd0, 0xd7, 0xde, 0xe5, 0xec, 0xf3, 0xfa, 0x01, 0x08, 0x0f, 0x16],
        ),
        (1792, &[0xce, 0xd5, 0xdc, 0xe3, 0xea, 0xf1, 0xf8, 0xff, 0x06, 0x0d, 0x14, 0x1b, 0x22, 0x29, 0x30]),
    ]);
    golden::assert_same(&controller.encode(), &bytes);
    assert_eq!(Controller::decode(&bytes), controller);
}

fn power_state() -> PowerState {
    PowerState {
        mp: 0x0201,
        flags: 3,
        enlat_us: 0x0706_0504,
        exlat_us: 0x0b0a_0908,
        rrt: 12,
        rrl: 13,
        rwt: 14,
        rwl: 15,
    }
}

#[test]
fn converts_controller_lengths_to_bytes() {
    let controller = Controller { ioccsz: 1028, mdts: 8, ..Controller::default() };
    assert_eq!(controller.in_capsule_len(), 16384);
    assert_eq!(controller.transfer_len_max(0), Some(1 << 20));
    assert_eq!(Controller::default().transfer_len_max(0), None);
    assert_eq!(Controller::default().in_capsule_len(), 0);
    let absurd = Controller { mdts: 255, ..Controller::default() };
    assert_eq!(absurd.transfer_len_max(15), Some(u64::MAX));
}

#[test]
fn namespace_has_each_field_in_its_place() {
    let mut namespace = Namespace {
        lbaf: [LbaFormat(0); 64],
        nsze: 0x342d_261f_1811_0a03,
        ncap: 0x6c65_5e57_5049_423b,
        nuse: 0xa49d_968f_8881_7a73,
        nsfeat: Nsfeat(0xab),
        nlbaf: 0xb2,
        flbas: Flbas(0xb9),
        mc: 0xc0,
        dpc: 0xc7,
        dps: 0xce,
        nmic: Nmic(0xd5),
        rescap: 0xdc,
        fpi: 0xe3,
        dlfeat: Dlfeat(0xea),
        nawun: 0xf8f1,
        nawupf: 0x06ff,
        nacwu: 0x140d,
        nabsn: 0x221b,
        nabo: 0x3029,
        nabspf: 0x3e37,
        noiob: 0x4c45,
        nvmcap_bytes: 0xbcb5_aea7_a099_928b_847d_766f_6861_5a53,
        npwg: 0xcac3,
        npwa: 0xd8d1,
        npdg: 0xe6df,
        npda: 0xf4ed,
        nows: 0x02fb,
        mssrl: 0x1009,
        mcl: 0x2c25_1e17,
        msrc: 0x33,
        anagrpid: 0x9c95_8e87,
        nsattr: NamespaceAttributes(0xb8),
        nvmsetid: 0xc6bf,
        endgid: 0xd4cd,
        nguid: [
            0xdb, 0xe2, 0xe9, 0xf0, 0xf7, 0xfe, 0x05, 0x0c, 0x13, 0x1a, 0x21, 0x28, 0x2f, 0x36, 0x3d, 0x44,
        ],
        eui64: [0x4b, 0x52, 0x59, 0x60, 0x67, 0x6e, 0x75, 0x7c],
    };
    namespace.lbaf[0] = LbaFormat(0x0403_0201);
    namespace.lbaf[15] = LbaFormat(0x0807_0605);
    namespace.lbaf[63] = LbaFormat(0x0c0b_0a09);
    let bytes = golden::bytes::<4096>(&[
        (128, &[1, 2, 3, 4]),
        (188, &[5, 6, 7, 8]),
        (380, &[9, 10, 11, 12]),
        (
            0,
            &[0x03, 0x0a, 0x11, 0x18, 0x1f, 0x26, 0x2d, 0x34, 0x3b, 0x42, 0x49, 0x50, 0x57, 0x5e, 0x65, 0x6c],
        ),
        (
            16,
            &[0x73, 0x7a, 0x81, 0x88, 0x8f, 0x96, 0x9d, 0xa4, 0xab, 0xb2, 0xb9, 0xc0, 0xc7, 0xce, 0xd5, 0xdc],
        ),
        (
            32,
            &[0xe3, 0xea, 0xf1, 0xf8, 0xff, 0x06, 0x0d, 0x14, 0x1b, 0x22, 0x29, 0x30, 0x37, 0x3e, 0x45, 0x4c],
        ),
        (
            48,
            &[0x53, 0x5a, 0x61, 0x68, 0x6f, 0x76, 0x7d, 0x84, 0x8b, 0x92, 0x99, 0xa0, 0xa7, 0xae, 0xb5, 0xbc],
        ),
        (
            64,
            &[0xc3, 0xca, 0xd1, 0xd8, 0xdf, 0xe6, 0xed, 0xf4, 0xfb, 0x02, 0x09, 0x10, 0x17, 0x1e, 0x25, 0x2c],
        ),
        (80, &[0x33]),
        (92, &[0x87, 0x8e, 0x95, 0x9c]),
        (
            99,
            &[
                0xb8, 0xbf, 0xc6, 0xcd, 0xd4, 0xdb, 0xe2, 0xe9, 0xf0, 0xf7, 0xfe, 0x05, 0x0c, 0x13, 0x1a,
                0x21, 0x28, 0x2f, 0x36, 0x3d, 0x44,
            ],
        ),
        (120, &[0x4b, 0x52, 0x59, 0x60, 0x67, 0x6e, 0x75, 0x7c]),
    ]);
    golden::assert_same(&namespace.encode(), &bytes);
    assert_eq!(Namespace::decode(&bytes), namespace);
}

#[test]
fn block_length_follows_the_format() {
    let mut namespace = Namespace { flbas: Flbas(1), ncap: 1, ..Namespace::default() };
    namespace.lbaf[1] = LbaFormat(0).with_lbads(12);
    assert_eq!((namespace.block_len(), namespace.is_active()), (Some(4096), true));
    for lbads in [0, 8, 32, 255] {
        namespace.lbaf[1] = LbaFormat(0).with_lbads(lbads);
        assert_eq!(namespace.block_len(), None, "{lbads}");
    }
    assert!(!Namespace::default().is_active());
}

#[test]
fn independent_namespace_has_each_field_in_its_place() {
    let namespace = IndependentNamespace {
        nsfeat: 1,
        nmic: Nmic(2),
        rescap: 3,
        fpi: 4,
        anagrpid: 0x0807_0605,
        nsattr: NamespaceAttributes(9),
        nvmsetid: 0x0c0b,
        endgid: 0x0e0d,
        nstat: NamespaceStatus(15),
    };
    let bytes = golden::bytes::<4096>(&[(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 11, 12, 13, 14, 15])]);
    golden::assert_same(&namespace.encode(), &bytes);
    assert_eq!(IndependentNamespace::decode(&bytes), namespace);
}

#[test]
fn encodes_nvm_command_set_structures() {
    let controller =
        NvmController { vsl: 1, wzsl: 2, wusl: 3, dmrl: 4, dmrsl: 0x0807_0605, dmsl: 0x100f_0e0d_0c0b_0a09 };
    let bytes = golden::bytes::<4096>(&[(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16])]);
    golden::assert_same(&controller.encode(), &bytes);
    assert_eq!(NvmController::decode(&bytes), controller);

    let mut namespace = NvmNamespace { lbstm: 0x0807_0605_0403_0201, pic: 9, ..Default::default() };
    namespace.elbaf[0] = 0x0d0c_0b0a;
    namespace.elbaf[63] = 0x11;
    let bytes =
        golden::bytes::<4096>(&[(0, &[1, 2, 3, 4, 5, 6, 7, 8, 9]), (12, &[10, 11, 12, 13]), (264, &[0x11])]);
    golden::assert_same(&namespace.encode(), &bytes);
    assert_eq!(NvmNamespace::decode(&bytes), namespace);
}
