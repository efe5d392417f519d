# Two commands are all a newcomer needs: `make demo` and `make test`.

.PHONY: demo cluster-demo test build fuzz soak bench scaling docs

demo: ## build, start a server, a sample site and a client, print a URL that works
	@scripts/demo

cluster-demo: ## three instances that find each other by DNS; one is stopped under load (needs dnsmasq, curl)
	@scripts/cluster-demo

test: ## everything: formatting, lints, unit tests, black-box tests, cases
	@scripts/test

build: ## release binaries in target/release
	cargo build --release --bins

fuzz: ## each fuzz target for a minute (FUZZ_SECONDS)
	@scripts/fuzz

soak: ## a mixed load for ten minutes (SOAK_SECONDS), and its invariants
	@scripts/soak

bench: ## the table of docs/performance.md (needs wrk, nginx; peers where installed)
	@scripts/bench

scaling: ## the figures of docs/scaling.md (needs redis-server, etcd)
	@scripts/scaling

docs: ## the pages that are generated
	cargo run -q --bin tunnelto_server settings-reference > docs/configuration.md
