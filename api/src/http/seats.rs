//! Seats of a listener: which connections are open, which of them are idle, and which one gives way to a newcomer.
//! Plain state without sockets: a connection is a number and the address of its client.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};

/// Number of a connection; no two connections of a listener have the same.
pub(super) type Id = u64;

/// Bits of an IPv6 address that name the network of one client.
const CLIENT_NETWORK: u128 = !0 << 64;

/// Limits of a listener's connections.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Most connections with a seat.
    pub(super) total: usize,
    /// Most connections of one client address; 0 for no limit.
    pub(super) per_address: usize,
}

/// Decision about a new connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    pub(super) id: Id,
    /// Whether the connection has a seat; otherwise it waits for one.
    pub(super) seated: bool,
    /// Idle connection that lost its seat to the new one.
    pub(super) evicted: Option<Id>,
}

/// Connection that is not let in: its address has too many connections, and none of them is idle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooMany;

/// Seats of a listener.
pub(super) struct Seats {
    limits: Limits,
    next: Id,
    /// Connections that have a seat or wait for one. An evicted connection is not among them.
    holders: HashMap<Id, Holder>,
    /// Number of connections of each address, those that wait included.
    of_address: HashMap<IpAddr, usize>,
    /// Idle connections by the time at which they became idle, counted in events.
    idle: BTreeMap<u64, Id>,
    idle_of_address: BTreeSet<(IpAddr, u64)>,
    /// Connections that wait for a seat, the longest wait first. No connection is idle while others wait.
    waiting: VecDeque<Id>,
    events: u64,
}

#[derive(Debug, Clone, Copy)]
struct Holder {
    address: IpAddr,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waiting,
    Busy,
    /// Idle since this event.
    Idle(u64),
}

impl Seats {
    pub(super) fn new(limits: Limits) -> Seats {
        Seats {
            limits,
            next: 0,
            holders: HashMap::new(),
            of_address: HashMap::new(),
            idle: BTreeMap::new(),
            idle_of_address: BTreeSet::new(),
            waiting: VecDeque::new(),
            events: 0,
        }
    }

    /// Returns the number of connections with a seat.
    pub(super) fn taken(&self) -> usize {
        self.holders.len() - self.waiting.len()
    }

    /// Lets in a new connection of `address`. If its address has as many connections as it may, the longest idle one of
    /// these gives way; if all seats are taken, the longest idle connection of all; if none is idle, the new connection
    /// waits. A connection begins as busy.
    ///
    /// # Errors
    /// If the address has as many connections as it may, and none of them is idle.
    pub(super) fn arrive(&mut self, address: IpAddr) -> Result<Arrival, TooMany> {
        let address = client(address);
        let held = self.of_address.get(&address).copied().unwrap_or(0);
        let at_cap = self.limits.per_address > 0 && held >= self.limits.per_address;
        let giving_way = if at_cap {
            let (_, since) = self.longest_idle_of(address).ok_or(TooMany)?;
            self.idle.get(&since).copied()
        } else if self.taken() >= self.limits.total {
            self.idle.first_key_value().map(|(_, id)| *id)
        } else {
            None
        };
        if let Some(id) = giving_way {
            self.remove(id);
        }
        let seated = self.taken() < self.limits.total;
        let id = self.next;
        self.next += 1;
        let state = if seated { State::Busy } else { State::Waiting };
        if !seated {
            self.waiting.push_back(id);
        }
        self.holders.insert(id, Holder { address, state });
        *self.of_address.entry(address).or_default() += 1;
        Ok(Arrival { id, seated, evicted: giving_way })
    }

    /// Notes that the client of a connection acts, so that it is not idle. Returns false if the connection has lost its
    /// seat.
    pub(super) fn busy(&mut self, id: Id) -> bool {
        let Some(Holder { address, state }) = self.holders.get(&id).copied() else { return false };
        if let State::Idle(since) = state {
            self.forget_idle(address, since);
            self.holders.insert(id, Holder { address, state: State::Busy });
        }
        true
    }

    /// Notes that a connection is idle from now on. If others wait, the connection loses its seat to the first of them,
    /// which is returned.
    pub(super) fn idle(&mut self, id: Id) -> Option<Id> {
        let Some(Holder { address, state: State::Busy }) = self.holders.get(&id).copied() else {
            return None;
        };
        if !self.waiting.is_empty() {
            self.remove(id);
            return self.seat_next();
        }
        self.events += 1;
        self.idle.insert(self.events, id);
        self.idle_of_address.insert((address, self.events));
        self.holders.insert(id, Holder { address, state: State::Idle(self.events) });
        None
    }

    /// Notes that a connection is closed. Returns the connection that waited and has a seat now.
    pub(super) fn leave(&mut self, id: Id) -> Option<Id> {
        self.remove(id);
        self.seat_next()
    }

    fn seat_next(&mut self) -> Option<Id> {
        if self.taken() >= self.limits.total {
            return None;
        }
        let id = self.waiting.pop_front()?;
        let holder = self.holders.get_mut(&id).expect("every waiting connection is a holder");
        holder.state = State::Busy;
        Some(id)
    }

    fn longest_idle_of(&self, address: IpAddr) -> Option<(IpAddr, u64)> {
        self.idle_of_address.range((address, 0)..=(address, u64::MAX)).next().copied()
    }

    fn forget_idle(&mut self, address: IpAddr, since: u64) {
        self.idle.remove(&since);
        self.idle_of_address.remove(&(address, since));
    }

    fn remove(&mut self, id: Id) {
        let Some(Holder { address, state }) = self.holders.remove(&id) else { return };
        match state {
            State::Idle(since) => self.forget_idle(address, since),
            State::Waiting => self.waiting.retain(|waiting| *waiting != id),
            State::Busy => {}
        }
        if let Some(held) = self.of_address.get_mut(&address) {
            *held -= 1;
            if *held == 0 {
                self.of_address.remove(&address);
            }
        }
    }
}

/// Returns the address by which a client's connections are counted: an IPv4 address, or the /64 network of an IPv6
/// address, because one client commonly has all addresses of such a network.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & CLIENT_NETWORK).into(),
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1));
    const B: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2));

    fn seats(total: usize, per_address: usize) -> Seats {
        Seats::new(Limits { total, per_address })
    }

    fn arrival(id: Id, seated: bool, evicted: Option<Id>) -> Result<Arrival, TooMany> {
        Ok(Arrival { id, seated, evicted })
    }

    #[test]
    fn the_longest_idle_connection_gives_way() {
        let mut seats = seats(3, 0);
        for id in 0..3 {
            assert_eq!(seats.arrive(A), arrival(id, true, None));
            assert_eq!(seats.idle(id), None);
        }
        assert!(seats.busy(0), "0 acts");
        assert_eq!(seats.idle(0), None);
        assert_eq!(seats.arrive(B), arrival(3, true, Some(1)));
        assert_eq!((seats.busy(1), seats.taken()), (false, 3));
        assert_eq!(seats.arrive(B), arrival(4, true, Some(2)));
        assert_eq!(seats.arrive(B), arrival(5, true, Some(0)));
    }

    #[test]
    fn newcomers_wait_behind_busy_connections_and_get_the_seats_that_come_free_in_order() {
        let mut seats = seats(2, 0);
        for id in 0..2 {
            assert_eq!(seats.arrive(A), arrival(id, true, None));
        }
        for id in 2..5 {
            assert_eq!(seats.arrive(B), arrival(id, false, None));
        }
        assert_eq!(seats.leave(3), None, "a waiting connection hangs up");
        assert_eq!(seats.idle(0), Some(2), "a connection that becomes idle gives way");
        assert!(!seats.busy(0));
        assert_eq!(seats.leave(0), None, "it has left its seat already");
        assert_eq!(seats.leave(1), Some(4));
        assert_eq!((seats.leave(2), seats.leave(4), seats.taken()), (None, None, 0));
        assert!(seats.holders.is_empty() && seats.of_address.is_empty());
    }

    #[test]
    fn an_address_at_its_cap_gives_up_its_own_idle_connections_and_no_others() {
        let mut seats = seats(4, 2);
        assert_eq!(seats.arrive(B), arrival(0, true, None));
        assert_eq!(seats.idle(0), None);
        for id in 1..3 {
            assert_eq!(seats.arrive(A), arrival(id, true, None));
        }
        assert_eq!(seats.arrive(A), Err(TooMany), "the idle connection of B stays");
        assert_eq!(seats.idle(2), None);
        assert_eq!(seats.arrive(A), arrival(3, true, Some(2)));
        assert_eq!(seats.arrive(A), Err(TooMany));
        assert_eq!(seats.leave(1), None);
        assert_eq!(seats.arrive(A), arrival(4, true, None));
    }

    #[test]
    fn a_client_is_an_ipv4_address_or_an_ipv6_network() {
        let of = |text: &str| client(text.parse().unwrap());
        assert_eq!(of("2001:db8::1:2:3:4"), of("2001:db8::5"));
        assert_ne!(of("2001:db8::1"), of("2001:db8:0:1::1"));
        assert_eq!(of("::ffff:10.0.0.1"), A);
        assert_ne!(of("10.0.0.2"), A);
    }
}
