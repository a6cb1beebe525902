// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Command tunnel measures Drover's tunnel in comparison with remotedialer and a direct connection, and prints one
// table.
//
// Each measurement uses three processes: a backend that replaces a member's API server, an agent next to it, and a hub
// that is also the client, so that the hub's memory can be measured separately. All of them run this program, with the
// flag -role. The candidates run alternately in several rounds, because other load on the machine varies.
//
//	go run . > ../../../docs/bench/tunnel.md      about five minutes
//	go run . -quick                               half a minute, to see that it works
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	role := flag.String("role", "", "internal: what a process started by this one does")
	quick := flag.Bool("quick", false, "measure little, to see that everything works; the figures mean nothing")
	only := flag.String("only", "", "take one measure only: latency, bulk, fairness, link, memory, killed or hung")
	flag.Parse()
	if err := run(*role, *only, *quick); err != nil {
		log.Fatal(err)
	}
}

func run(role, only string, quick bool) error {
	switch role {
	case "":
		return orchestrate(only, quick)
	case "backend":
		return serveBackend()
	case "agent":
		return serveAgent()
	case "hub":
		return measureAsHub()
	default:
		return fmt.Errorf("unknown role %q", role)
	}
}

// measures are run in this order. Long measurements that mostly wait run in parallel.
func measures(quick bool) []measure {
	rounds := func(n int) int {
		if quick {
			return 1
		}
		return n
	}
	return []measure{
		{name: "latency", contenders: all, rounds: rounds(5)},
		{name: "bulk", contenders: all, rounds: rounds(5)},
		{name: "fairness", contenders: all, rounds: rounds(3)},
		{name: "link", contenders: all, rounds: rounds(2)},
		{name: "memory", contenders: tunnels, rounds: 1},
		{name: "killed", contenders: tunnels, rounds: rounds(2)},
		{name: "hung", contenders: tunnels, rounds: 1, together: true},
	}
}

// measure is one kind of measurement. Its name is the name of a function of a hub.
type measure struct {
	name       string
	contenders []string
	rounds     int
	together   bool // it only waits, so that the contenders can run at once
}

// orchestrate runs all measurements and prints the table.
func orchestrate(only string, quick bool) error {
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted
		os.Exit(1) // children end with their standard input
	}()
	begun := time.Now()
	collected := newResults()
	list := slices.DeleteFunc(measures(quick), func(m measure) bool { return only != "" && m.name != only })
	for i, m := range list {
		for round := range m.rounds {
			fmt.Fprintf(os.Stderr, "[%4.0fs] %d/%d %s, round %d of %d\n", time.Since(begun).Seconds(), i+1, len(list), m.name, round+1, m.rounds)
			if err := m.takeRound(collected, quick, round); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(os.Stderr, "[%4.0fs] done\n", time.Since(begun).Seconds())
	writeReport(os.Stdout, collected, quick, time.Since(begun))
	return nil
}

// takeRound measures each contender once. The first contender changes from round to round.
func (m measure) takeRound(into *results, quick bool, round int) error {
	var (
		wait  sync.WaitGroup
		mu    sync.Mutex // guards first
		first error
	)
	for i := range m.contenders {
		contender := m.contenders[(i+round)%len(m.contenders)]
		one := func() {
			values, err := measureInProcess(task{Contender: contender, Measure: m.name, Quick: quick})
			mu.Lock()
			defer mu.Unlock()
			if err != nil && first == nil {
				first = fmt.Errorf("measure %s of %s: %w", m.name, contender, err)
			}
			into.add(contender, values)
		}
		if m.together {
			wait.Go(one)
		} else {
			one()
		}
	}
	wait.Wait()
	return first
}

// measureInProcess starts a hub for one measurement and returns its result.
func measureInProcess(t task) (map[string]float64, error) {
	hub, err := start("hub", t)
	if err != nil {
		return nil, err
	}
	defer hub.stop()
	values := map[string]float64{}
	if err := json.NewDecoder(bufio.NewReader(hub.output)).Decode(&values); err != nil {
		return nil, fmt.Errorf("read the hub's result: %w", err)
	}
	return values, nil
}
