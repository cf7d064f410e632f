//! Messages: the checks of their lengths and fields, in the order of the fields, and their encoding.

use isolane_auth::Digest;
use isolane_wire::auth::{
    Challenge, DHCHAP_PROTOCOL, DhGroup, Failure, Hash, MessageHeader, MessageId, Negotiate,
    ProtocolDescriptor, Reply, Success1, Success2,
};

use super::Policy;
use super::refusal::Refusal;

/// Returns the message and its transaction identifier.
pub(super) fn identify(message: &[u8]) -> Result<(MessageId, u16), Refusal> {
    let header = MessageHeader::decode_prefix(message).ok_or(Refusal::Payload("length"))?;
    Ok((MessageId::decode_id(header.id).ok_or(Refusal::Message)?, header.t_id))
}

/// The choice among the offers of an AUTH_Negotiate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) t_id: u16,
    pub(super) hash: Hash,
    pub(super) group: DhGroup,
}

/// Encodes AUTH_Negotiate.
pub(super) fn negotiate(t_id: u16, policy: &Policy) -> Vec<u8> {
    let mut descriptor = ProtocolDescriptor {
        authid: DHCHAP_PROTOCOL,
        halen: policy.hashes.len() as u8,
        dhlen: policy.groups.len() as u8,
        ..ProtocolDescriptor::default()
    };
    for (id, hash) in descriptor.hashes.iter_mut().zip(&policy.hashes) {
        *id = hash.code();
    }
    for (id, group) in descriptor.groups.iter_mut().zip(&policy.groups) {
        *id = group.code();
    }
    let header = Negotiate { id: MessageId::Negotiate.codes(), t_id, sc_c: 0, napd: 1 };
    [&header.encode()[..], &descriptor.encode()[..]].concat()
}

/// Chooses the first hash function and group of `policy` that the host offers.
pub(super) fn choose(message: &[u8], policy: &Policy) -> Result<Chosen, Refusal> {
    let header = Negotiate::decode_prefix(message).ok_or(Refusal::Payload("length"))?;
    if header.sc_c != 0 {
        return Err(Refusal::Concatenation);
    }
    let descriptors = &message[Negotiate::LEN..];
    if header.napd == 0 || descriptors.len() != usize::from(header.napd) * ProtocolDescriptor::LEN {
        return Err(Refusal::Payload("NAPD"));
    }
    let mut descriptors = descriptors.chunks_exact(ProtocolDescriptor::LEN);
    let descriptor = descriptors
        .find_map(|bytes| {
            ProtocolDescriptor::decode_prefix(bytes).filter(|found| found.authid == DHCHAP_PROTOCOL)
        })
        .ok_or(Refusal::Protocol)?;
    let hashes = offered(&descriptor.hashes, descriptor.halen, "HALEN")?;
    let groups = offered(&descriptor.groups, descriptor.dhlen, "DHLEN")?;
    let hash = policy.hashes.iter().find(|hash| hashes.contains(&hash.code())).ok_or(Refusal::Hash)?;
    let group = policy.groups.iter().find(|group| groups.contains(&group.code())).ok_or(Refusal::DhGroup)?;
    Ok(Chosen { t_id: header.t_id, hash: *hash, group: *group })
}

fn offered<'a>(list: &'a [u8; 30], len: u8, field: &'static str) -> Result<&'a [u8], Refusal> {
    list.get(..len.into()).filter(|list| !list.is_empty()).ok_or(Refusal::Payload(field))
}

/// A checked DH-HMAC-CHAP_Challenge.
pub(super) struct ParsedChallenge {
    pub(super) hash: Hash,
    pub(super) group: DhGroup,
    pub(super) sequence: u32,
    pub(super) challenge: Digest,
    /// Empty with the NULL group.
    pub(super) dh_value: Vec<u8>,
}

/// Encodes DH-HMAC-CHAP_Challenge.
pub(super) fn challenge(chosen: Chosen, sequence: u32, challenge: &Digest, dh_value: &[u8]) -> Vec<u8> {
    let header = Challenge {
        id: MessageId::Challenge.codes(),
        t_id: chosen.t_id,
        hl: chosen.hash.len_bytes() as u8,
        hash: chosen.hash.code(),
        group: chosen.group.code(),
        dhvlen: dh_value.len() as u16,
        seqnum: sequence,
    };
    [&header.encode()[..], challenge.as_bytes(), dh_value].concat()
}

/// Checks a challenge against the offers. Bytes after it are padding.
pub(super) fn parse_challenge(message: &[u8], policy: &Policy) -> Result<ParsedChallenge, Refusal> {
    let header = Challenge::decode_prefix(message).ok_or(Refusal::Payload("length"))?;
    let hash = Hash::decode(header.hash).filter(|hash| policy.hashes.contains(hash)).ok_or(Refusal::Hash)?;
    let group = DhGroup::decode(header.group)
        .filter(|group| policy.groups.contains(group))
        .ok_or(Refusal::DhGroup)?;
    check_hash_length(header.hl, hash)?;
    check_dh_length(header.dhvlen, group)?;
    if header.seqnum == 0 {
        return Err(Refusal::Payload("SEQNUM"));
    }
    let values = &message[Challenge::LEN..];
    let (challenge, values) = split(values, hash.len_bytes())?;
    let (dh_value, _) = split(values, header.dhvlen.into())?;
    Ok(ParsedChallenge {
        hash,
        group,
        sequence: header.seqnum,
        challenge: Digest::new(challenge),
        dh_value: dh_value.to_vec(),
    })
}

/// A checked DH-HMAC-CHAP_Reply.
pub(super) struct ParsedReply {
    pub(super) response: Digest,
    /// The host's challenge and its sequence number, if it challenges the controller.
    pub(super) challenge: Option<(Digest, u32)>,
    /// Empty with the NULL group.
    pub(super) dh_value: Vec<u8>,
}

/// Encodes DH-HMAC-CHAP_Reply.
pub(super) fn reply(t_id: u16, hash: Hash, reply: &ParsedReply) -> Vec<u8> {
    let (challenge, seqnum) = match &reply.challenge {
        Some((challenge, sequence)) => (challenge.clone(), *sequence),
        None => (Digest::new(&vec![0; hash.len_bytes()]), 0),
    };
    let header = Reply {
        id: MessageId::Reply.codes(),
        t_id,
        hl: hash.len_bytes() as u8,
        cvalid: reply.challenge.is_some().into(),
        dhvlen: reply.dh_value.len() as u16,
        seqnum,
    };
    [&header.encode()[..], reply.response.as_bytes(), challenge.as_bytes(), &reply.dh_value].concat()
}

/// Checks a reply against the choice of the controller.
pub(super) fn parse_reply(message: &[u8], chosen: Chosen) -> Result<ParsedReply, Refusal> {
    let header = Reply::decode_prefix(message).ok_or(Refusal::Payload("length"))?;
    check_transaction(header.t_id, chosen.t_id)?;
    check_hash_length(header.hl, chosen.hash)?;
    if header.cvalid > 1 {
        return Err(Refusal::Payload("CVALID"));
    }
    check_dh_length(header.dhvlen, chosen.group)?;
    // 0 is only for secure channel concatenation, without a response of the controller.
    if header.cvalid == 1 && header.seqnum == 0 {
        return Err(Refusal::Payload("SEQNUM"));
    }
    let (response, values) = split(&message[Reply::LEN..], chosen.hash.len_bytes())?;
    let (challenge, dh_value) = split(values, chosen.hash.len_bytes())?;
    if dh_value.len() != usize::from(header.dhvlen) {
        return Err(Refusal::Payload("length"));
    }
    Ok(ParsedReply {
        response: Digest::new(response),
        challenge: (header.cvalid == 1).then(|| (Digest::new(challenge), header.seqnum)),
        dh_value: dh_value.to_vec(),
    })
}

/// Encodes DH-HMAC-CHAP_Success1.
pub(super) fn success1(chosen: Chosen, response: Option<&Digest>) -> Vec<u8> {
    let header = Success1 {
        id: MessageId::Success1.codes(),
        t_id: chosen.t_id,
        hl: chosen.hash.len_bytes() as u8,
        rvalid: response.is_some().into(),
    };
    [&header.encode()[..], response.map(Digest::as_bytes).unwrap_or_default()].concat()
}

/// Returns the response of the controller, if there is one. Bytes after it are padding.
pub(super) fn parse_success1(message: &[u8], hash: Hash) -> Result<Option<Digest>, Refusal> {
    let header = Success1::decode_prefix(message).ok_or(Refusal::Payload("length"))?;
    check_hash_length(header.hl, hash)?;
    match header.rvalid {
        0 => Ok(None),
        1 => Ok(Some(Digest::new(split(&message[Success1::LEN..], hash.len_bytes())?.0))),
        _ => Err(Refusal::Payload("RVALID")),
    }
}

/// Encodes DH-HMAC-CHAP_Success2.
pub(super) fn success2(t_id: u16) -> Vec<u8> {
    Success2 { id: MessageId::Success2.codes(), t_id }.encode().to_vec()
}

/// Encodes AUTH_Failure1 or AUTH_Failure2.
pub(super) fn failure(id: MessageId, t_id: u16, refusal: Refusal) -> Vec<u8> {
    let explanation = refusal.code().code();
    Failure { id: id.codes(), t_id, reason: Failure::REASON, explanation }.encode().to_vec()
}

/// Returns the refusal that a failure message reports.
pub(super) fn parse_failure(message: &[u8]) -> Refusal {
    Failure::decode_prefix(message)
        .map_or(Refusal::PeerUnknown, |failure| Refusal::from_peer(failure.explanation))
}

/// Checks the transaction identifier.
pub(super) fn check_transaction(t_id: u16, expected: u16) -> Result<(), Refusal> {
    if t_id == expected { Ok(()) } else { Err(Refusal::Payload("T_ID")) }
}

fn check_hash_length(hl: u8, hash: Hash) -> Result<(), Refusal> {
    if usize::from(hl) == hash.len_bytes() { Ok(()) } else { Err(Refusal::Payload("HL")) }
}

/// A value can lack leading zeroes, as SPDK sends it.
fn check_dh_length(dhvlen: u16, group: DhGroup) -> Result<(), Refusal> {
    let is_valid = match group {
        DhGroup::Null => dhvlen == 0,
        _ => (1..=group.len_bytes()).contains(&dhvlen.into()),
    };
    if is_valid { Ok(()) } else { Err(Refusal::Payload("DHVLEN")) }
}

fn split(values: &[u8], len: usize) -> Result<(&[u8], &[u8]), Refusal> {
    values.split_at_checked(len).ok_or(Refusal::Payload("length"))
}
