//! Tests the address lock: which agents resolve addresses, which agents measure at an address, and
//! which measurements are shared.

use std::net::IpAddr;
use std::time::Duration;

use sqlx::PgPool;

use crate::jobs::fixtures::{Agent, Trial, took};
use crate::model::{AgentId, OrderId};
use crate::store::fixtures;
use crate::store::measurements::orders::{self, OrderTarget};
use crate::store::measurements::{MeasurementReport, ReportContent};

const HERE: [u8; 4] = [192, 0, 2, 1];
const THERE: [u8; 4] = [192, 0, 2, 2];
const REQUESTS: u32 = 6;

fn took_so_long(millis: u64) -> ReportContent {
    ReportContent::Measured { result: took(millis), agreed: None }
}

async fn report(
    trial: &Trial,
    agent: Agent,
    order: OrderId,
    finding: ReportContent,
    address: Option<[u8; 4]>,
    requests: u32,
) {
    let report = MeasurementReport { finding, origin: None, address: address.map(IpAddr::from), requests };
    fixtures::measure(&mut *trial.conn().await, agent.0, order, &report).await;
}

/// Answers an agent's orders as if all names resolved to `address`. The answer is `finding` if the
/// order locks that address, otherwise only the address. Returns the address that each order
/// locked.
async fn answer(trial: &Trial, agent: Agent, finding: &ReportContent, address: [u8; 4]) -> Vec<Option<IpAddr>> {
    let mut held = Vec::new();
    for (order, locked) in take(trial, agent).await {
        let here = locked == Some(IpAddr::from(address));
        let (finding, requests) = if here { (finding.clone(), REQUESTS) } else { (ReportContent::Postponed, 0) };
        report(trial, agent, order, finding, Some(address), requests).await;
        held.push(locked);
    }
    held
}

async fn quarantine(trial: &Trial, (agent, _): Agent) {
    let quarantine = "insert into quarantines (agent_id, evidence, reason) values ($1, 'light', 'on purpose')";
    trial.execute_for(quarantine, agent.get()).await;
}

/// An agent's site orders, as sent to it.
async fn take(trial: &Trial, (agent, session): Agent) -> Vec<(OrderId, Option<IpAddr>)> {
    let mut conn = trial.conn().await;
    let orders = orders::take_unsent(&mut conn, agent, session).await.expect("take orders");
    let sites = orders.into_iter().filter_map(|order| match order.target {
        OrderTarget::Site { locked, .. } => Some((order.id, locked)),
        OrderTarget::Beacon { .. } => None,
    });
    sites.collect()
}

/// The prober of the only open site order.
async fn asked(trial: &Trial) -> Agent {
    let orders = trial.site_orders().await;
    assert_eq!(orders.len(), 1, "{orders:?}");
    trial.agents[trial.place(orders[0].0)]
}

/// Makes agents answer until no order is open. An agent resolves every site to the address that
/// `sees` returns for this agent. Returns the address that each answered order locked.
async fn finish(trial: &Trial, agents: &[Agent], sees: impl Fn(AgentId) -> [u8; 4]) -> Vec<(AgentId, Option<IpAddr>)> {
    let mut held = Vec::new();
    loop {
        trial.measure().await;
        if trial.site_orders().await.is_empty() {
            return held;
        }
        for agent in agents {
            let locked = answer(trial, *agent, &took_so_long(10), sees(agent.0)).await;
            held.extend(locked.into_iter().map(|address| (agent.0, address)));
        }
        assert!(held.len() < 1000, "no end: {held:?}");
    }
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_address_has_one_open_order_over_all_probers_and_sites(pool: PgPool) {
    let trial = Trial::new(pool, 3).await;
    for host in ["a.cn", "b.cn", "c.cn"] {
        trial.task(host).await;
    }
    trial.measure().await;
    assert_eq!(trial.site_orders().await.len(), 3, "nobody knows yet that they stand together");
    for agent in &trial.agents {
        assert_eq!(answer(&trial, *agent, &took_so_long(10), HERE).await, [None], "resolve only");
    }
    assert_eq!(trial.count("select count(*) from site_measurements").await, 0, "nobody failed, and nobody was asked");

    let mut rounds = 0;
    loop {
        tokio::join!(trial.measure(), trial.measure());
        if trial.site_orders().await.is_empty() {
            break;
        }
        let agent = asked(&trial).await;
        assert_eq!(answer(&trial, agent, &took_so_long(10), HERE).await, [Some(HERE.into())]);
        rounds += 1;
    }
    assert_eq!(rounds, 9, "three sites from three probers");
    let requests = "select sum(requests)::bigint from site_measurements";
    assert_eq!(trial.count(requests).await, 9 * i64::from(REQUESTS));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_prober_that_sees_a_site_elsewhere_takes_its_turn_there(pool: PgPool) {
    let trial = Trial::new(pool, 2).await;
    let far = trial.agents[1].0;
    let sees = |agent| if agent == far { THERE } else { HERE };
    trial.task("geo.cn").await;
    let held = finish(&trial, &trial.agents, sees).await;
    let locked =
        |agent| held.iter().filter(|(held, _)| *held == agent).map(|(_, address)| *address).collect::<Vec<_>>();
    assert_eq!(locked(trial.agents[0].0), [None, Some(HERE.into())]);
    assert_eq!(
        locked(far),
        [Some(HERE.into()), Some(THERE.into())],
        "it was led elsewhere, and then locked the address there"
    );
    let measured = "select count(distinct address) from site_measurements where rtt_us is not null";
    assert_eq!(trial.count(measured).await, 2);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_prober_waits_for_its_turn_where_it_sees_the_site(pool: PgPool) {
    let trial = Trial::new(pool, 2).await;
    trial.task("geo.cn").await;
    trial.task("other.cn").await;
    trial.execute("update sites set address = '192.0.2.1' where name = 'geo.cn'").await;
    trial.execute("update sites set address = '192.0.2.2' where name = 'other.cn'").await;
    trial
        .execute(
            "insert into resolved_addresses (site_id, prober_id, address)
             select s.id, a.id, '192.0.2.2' from sites s, agents a where s.name = 'geo.cn' and a.name = 'a1'",
        )
        .await;
    trial.measure().await;
    assert_eq!(answer(&trial, trial.agents[0], &took_so_long(10), HERE).await, [Some(HERE.into())], "geo.cn");
    trial.measure().await;
    assert_eq!(asked(&trial).await, trial.agents[1], "other.cn, and geo.cn waits for it");
    assert_eq!(answer(&trial, trial.agents[1], &took_so_long(10), THERE).await, [Some(THERE.into())]);
    let held = finish(&trial, &trial.agents, |_| THERE).await;
    assert_eq!(held.iter().map(|(_, address)| *address).collect::<Vec<_>>(), [Some(IpAddr::from(THERE)); 2]);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_agent_that_lies_about_addresses_costs_the_others_two_orders_a_site(pool: PgPool) {
    let trial = Trial::new(pool, 5).await;
    let liar = trial.agents[0].0;
    let (_, site) = trial.task("a.cn").await;
    let held = finish(&trial, &trial.agents, |agent| if agent == liar { THERE } else { HERE }).await;
    let misled = held.iter().filter(|(agent, address)| *agent != liar && *address == Some(THERE.into())).count();
    assert_eq!(misled, 2, "the third and the fourth go by what two agree on: {held:?}");
    let address: String = trial.read_for("select host(address) from sites where id = $1", site.get()).await;
    assert_eq!(address, "192.0.2.1");
    assert_eq!(trial.count("select count(*) from resolved_addresses").await, 1, "the liar's alone");
    assert_eq!(trial.count("select count(*) from site_measurements where rtt_us is not null").await, 5);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_quarantined_agent_moves_nobody_elses_turn(pool: PgPool) {
    let trial = Trial::new(pool, 3).await;
    trial.task("a.cn").await;
    trial.measure().await;
    let first = asked(&trial).await;
    quarantine(&trial, first).await;
    answer(&trial, first, &took_so_long(10), THERE).await;
    assert_eq!(trial.count("select count(*) from sites where address is not null").await, 0);
    let others: Vec<Agent> = trial.agents.iter().copied().filter(|agent| *agent != first).collect();
    let held = finish(&trial, &others, |_| HERE).await;
    assert!(held.iter().all(|(_, address)| *address != Some(THERE.into())), "{held:?}");
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_site_that_is_postponed_again_and_again_has_failed_and_so_has_one_without_an_address(pool: PgPool) {
    let trial = Trial::new(pool, 1).await;
    trial.task("a.cn").await;
    let mut orders = 0_u8;
    let failure = "select count(*) from site_measurements where failure like '%a different address each time'";
    while trial.count(failure).await == 0 {
        trial.measure().await;
        for (order, _) in take(&trial, trial.agents[0]).await {
            orders += 1;
            assert!(orders < 100, "no end");
            report(&trial, trial.agents[0], order, ReportContent::Postponed, Some([192, 0, 2, orders]), 2).await;
        }
    }
    assert_eq!(orders, 6, "one to find the address out, and five that lock it");
    assert_eq!(trial.count("select requests from site_measurements").await, 12, "what they cost is not lost");
    trial.measure().await;
    assert_eq!(trial.site_orders().await, [], "a failure like another");

    trial.task("b.cn").await;
    trial.measure().await;
    let (order, locked) = take(&trial, trial.agents[0]).await[0];
    assert_eq!(locked, None);
    report(&trial, trial.agents[0], order, ReportContent::Postponed, None, 0).await;
    assert_eq!(trial.count("select count(*) from site_measurements where failure like '%gave no address'").await, 1);
    trial.measure().await;
    assert_eq!(trial.site_orders().await, []);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn an_agent_that_knows_no_turns_measures_at_once_and_that_counts(pool: PgPool) {
    let trial = Trial::new(pool, 1).await;
    trial.task("a.cn").await;
    trial.measure().await;
    let (order, locked) = take(&trial, trial.agents[0]).await[0];
    assert_eq!(locked, None);
    report(&trial, trial.agents[0], order, took_so_long(10), Some(HERE), REQUESTS).await;
    trial.measure().await;
    assert_eq!(trial.site_orders().await, []);
    assert_eq!(trial.count("select requests from site_measurements").await, i64::from(REQUESTS));
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_site_that_settles_elsewhere_is_measured_there_by_everyone(pool: PgPool) {
    let trial = Trial::new(pool, 2).await;
    trial.task("a.cn").await;
    trial.measure().await;
    let first = asked(&trial).await;
    answer(&trial, first, &took_so_long(10), HERE).await;
    trial.measure().await;
    let settling = asked(&trial).await;
    let (order, locked) = take(&trial, settling).await[0];
    assert_eq!(locked, Some(HERE.into()));
    let origin = Some("https://www.a.cn:443".to_owned());
    let report =
        MeasurementReport { finding: ReportContent::Postponed, origin, address: Some(THERE.into()), requests: 2 };
    fixtures::measure(&mut *trial.conn().await, settling.0, order, &report).await;
    let held = finish(&trial, &trial.agents, |_| THERE).await;
    assert_eq!(held.iter().map(|(_, address)| *address).collect::<Vec<_>>(), [Some(IpAddr::from(THERE)); 2]);
    let requests = "select sum(requests)::bigint from site_measurements";
    assert_eq!(trial.count(requests).await, 2 + 2 * i64::from(REQUESTS));
}

/// Makes one agent measure the site `name` at the address 192.0.2.1. `agreed` says whether its
/// result agrees with an earlier measurement at this address. Returns whether the order allowed
/// sites at this address to share measurements.
async fn checked(trial: &Trial, name: &str, agent: Agent, agreed: bool) -> bool {
    let mut conn = trial.conn().await;
    let site = fixtures::site(&mut conn, name).await;
    trial.execute_for("update sites set address = '192.0.2.1' where id = $1", site.get()).await;
    orders::order_sites(&mut conn, &[(site, agent.0)], Duration::from_secs(60)).await.expect("order");
    let orders = orders::take_unsent(&mut conn, agent.0, agent.1).await.expect("take");
    let mut of_sites = orders.iter().filter_map(|order| match order.target {
        OrderTarget::Site { may_share, .. } => Some((order.id, may_share)),
        OrderTarget::Beacon { .. } => None,
    });
    let (order, may_share) = of_sites.next_back().expect("an order");
    let finding = ReportContent::Measured { result: took(90), agreed: Some(agreed) };
    report(trial, agent, order, finding, Some(HERE), REQUESTS).await;
    may_share
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn one_agent_ends_the_sharing_of_an_address_for_itself_and_two_end_it_for_all(pool: PgPool) {
    let trial = Trial::new(pool, 3).await;
    for (name, agent, agreed, might) in [
        ("a.cn", 0, true, true),
        ("b.cn", 0, false, true),
        ("c.cn", 0, false, false),
        ("d.cn", 1, true, true),
        ("e.cn", 1, false, true),
        ("f.cn", 2, true, false),
    ] {
        assert_eq!(checked(&trial, name, trial.agents[agent], agreed).await, might, "{name}");
    }
    quarantine(&trial, trial.agents[0]).await;
    assert!(checked(&trial, "g.cn", trial.agents[2], true).await, "one of the two is not believed any more");

    let kept = "select count(*) from address_disagreements";
    trial.measure().await;
    assert_eq!(trial.count(kept).await, 2);
    trial.execute("update address_disagreements set seen_at = now() - interval '25 hours'").await;
    assert!(checked(&trial, "h.cn", trial.agents[1], true).await, "a day later");
    trial.measure().await;
    assert_eq!(trial.count(kept).await, 0);
}

#[sqlx::test(migrator = "crate::store::MIGRATOR")]
async fn a_shared_measurement_is_as_old_as_it_is_and_says_whose_it_is(pool: PgPool) {
    let trial = Trial::new(pool, 1).await;
    trial.task("a.cn").await;
    trial.measure().await;
    answer(&trial, trial.agents[0], &took_so_long(10), HERE).await;
    trial.measure().await;
    let measured = took(10).expect("a measurement");
    let (from, age) = ("https://b.cn:443".to_owned(), Duration::from_secs(600));
    answer(&trial, trial.agents[0], &ReportContent::Shared { measured, from, age }, HERE).await;
    let told = "select count(*) from site_measurements
                where shared_from = 'https://b.cn:443' and measured_at between now() - interval '11 minutes'
                                                                           and now() - interval '10 minutes'";
    assert_eq!(trial.count(told).await, 1);
    trial.measure().await;
    assert_eq!(trial.site_orders().await, [], "it is a measurement like another");
}
