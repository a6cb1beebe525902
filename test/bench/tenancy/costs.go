// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/drover-dev/drover/test/lab"
)

// costs is the CPU time of each process, in the order of costNames.
type costs [8]time.Duration

func costNames() []string {
	return []string{"hub's API server", "its etcd", "its controller manager", "manager", "agent", "member's API server", "its etcd", "its controller manager"}
}

// costs returns the CPU time that each process has used since its start.
func (p *processes) costs() (c costs, err error) {
	for i, process := range []*lab.Process{
		p.hub.Process(lab.APIServer), p.hub.Process(lab.Etcd), p.hub.Process(lab.ControllerManager), p.hub.Manager, p.agent.Process,
		p.member.Process(lab.APIServer), p.member.Process(lab.Etcd), p.member.Process(lab.ControllerManager),
	} {
		used, err := process.Usage()
		if err != nil {
			return c, err
		}
		c[i] = used.CPU
	}
	return c, nil
}

// since returns the difference to earlier costs, divided by n.
func (c costs) since(before costs, n int) costs {
	for i := range c {
		c[i] = (c[i] - before[i]) / time.Duration(n)
	}
	return c
}

func (c costs) sum() (all time.Duration) {
	for _, one := range c {
		all += one
	}
	return all
}

// writeCosts writes the table of CPU times.
func writeCosts(text *strings.Builder, rows []row) {
	fmt.Fprintf(text, "\nThe next table shows the CPU time for each binding, in ms, from the first write until the last binding has arrived. Later work for a binding, such as its status, counts if it falls within that time.\n\n| what | %s | all |\n|%s\n",
		strings.Join(costNames(), " | "), strings.Repeat("---|", len(costNames())+2))
	for _, r := range rows {
		if r.costs.sum() == 0 {
			continue
		}
		fmt.Fprintf(text, "| %s |", r.what)
		for _, one := range r.costs {
			fmt.Fprintf(text, " %.1f |", ms(one))
		}
		fmt.Fprintf(text, " %.1f |\n", ms(r.costs.sum()))
	}
}
