//! Commands of a host on the wire: the header of the discovery log page, and a host that does not authenticate.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use isolane_wire::admin::{GetLogPageCommand, LogPage};
use isolane_wire::fabrics::{
    ConnectAttributes, ConnectCommand, ConnectData, PropertyGetCommand, PropertySetCommand, PropertySize,
};
use isolane_wire::log::DiscoveryHeader;
use isolane_wire::pdu::{CapsuleCmd, CommonHeader, ControllerPdu, IcReq};
use isolane_wire::registers::{Cc, Csts};
use isolane_wire::{Framing, Nqn, Sgl, Status, SubmissionEntry};

/// A connection after its Connect.
struct Host {
    stream: TcpStream,
    next_cid: u16,
}

/// Returns the header that the target with this URI shows.
pub fn read_header(uri: &str) -> DiscoveryHeader {
    let mut host = Host::connect(uri, Nqn::discovery(), "nqn.2014-08.org.example:reader");
    let enable = u64::from(Cc::enabled().0);
    host.run(PropertySetCommand { size: PropertySize::Bytes4, offset: 0x14, value: enable }.entry(), &[]);
    let status = PropertyGetCommand { size: PropertySize::Bytes4, offset: 0x1c }.entry();
    assert!(Csts(host.run(status, &[]).0 as u32).rdy());
    let len = DiscoveryHeader::LEN as u32;
    let (lid, numd) = (LogPage::Discovery.code(), len / 4 - 1);
    let log = GetLogPageCommand { lid, numd, ..GetLogPageCommand::default() }.entry();
    let log = SubmissionEntry { sgl: Sgl::Transport { len }, ..log };
    DiscoveryHeader::decode_prefix(&host.run(log, &[]).1).unwrap()
}

/// Connects a host, which then waits until the target closes the connection.
pub fn connect_and_be_silent(uri: &str, subsystem: &str, host: &str) {
    let mut host = Host::connect(uri, subsystem.parse().unwrap(), host);
    while host.stream.read(&mut [0; 512]).unwrap() > 0 {}
}

impl Host {
    fn connect(uri: &str, subsystem: Nqn, host_nqn: &str) -> Host {
        let stream = TcpStream::connect(uri.trim_start_matches("nvme+tcp://")).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut host = Host { stream, next_cid: 0 };
        host.stream.write_all(&IcReq::default().encode()).unwrap();
        assert!(matches!(host.receive().0, ControllerPdu::IcResp(_)));
        let host_nqn: Nqn = host_nqn.parse().unwrap();
        let (subnqn, hostnqn) = (subsystem.into(), host_nqn.into());
        let data = ConnectData { hostid: [7; 16], cntlid: 0xffff, subnqn, hostnqn };
        let (attributes, data) = (ConnectAttributes(0), data.encode());
        let connect = ConnectCommand { recfmt: 0, qid: 0, sqsize: 31, attributes, kato_ms: 0 }.entry();
        let sgl = Sgl::InCapsule { offset: 0, len: data.len() as u32 };
        host.run(SubmissionEntry { sgl, ..connect }, &data);
        host
    }

    /// Runs a command. Returns the value of its completion, and its data.
    fn run(&mut self, entry: SubmissionEntry, data: &[u8]) -> (u64, Vec<u8>) {
        let entry = SubmissionEntry { cid: self.next_cid, ..entry };
        self.next_cid += 1;
        let header = CapsuleCmd { entry, data_len: data.len() as u32 }.encode(&Framing::default());
        self.stream.write_all(&[&header[..], data].concat()).unwrap();
        let mut received = Vec::new();
        loop {
            let (pdu, data) = self.receive();
            match pdu {
                ControllerPdu::C2hData(header) => {
                    received.extend(data);
                    if header.success {
                        return (0, received);
                    }
                }
                ControllerPdu::CapsuleResp(response) => {
                    assert_eq!(response.entry.status, Status::SUCCESS);
                    return (response.entry.value(), received);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    fn receive(&mut self) -> (ControllerPdu, Vec<u8>) {
        let framing = Framing::default();
        let mut bytes = vec![0; CommonHeader::LEN];
        self.stream.read_exact(&mut bytes).unwrap();
        let header = CommonHeader::decode(bytes[..].try_into().unwrap()).unwrap();
        bytes.resize(header.plen as usize, 0);
        self.stream.read_exact(&mut bytes[CommonHeader::LEN..]).unwrap();
        let data = bytes[header.prefix_len(&framing).min(bytes.len())..].to_vec();
        (ControllerPdu::decode(&bytes, &framing).unwrap(), data)
    }
}
