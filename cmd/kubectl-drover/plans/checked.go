// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"fmt"
	"slices"
	"strings"

	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
	"github.com/drover-dev/drover/internal/upgradecheck"
)

// stateSafe is the state of a Cluster without findings.
const stateSafe = "safe"

// checked is the output of "plan check".
type checked struct {
	Items []checkedCluster `json:"items"`
}

// checkedCluster is the result of the checks of a Plan in one Cluster.
type checkedCluster struct {
	Plan    string `json:"plan"`
	Version string `json:"version"`
	Cluster string `json:"cluster"`
	// Findings are the reasons why the upgrade is not safe.
	Findings []upgradecheck.Finding `json:"findings"`
	// Error explains why the Cluster was not checked.
	Error string `json:"error,omitempty"`
}

// count returns the number of findings, and the number of checks that could not be completed.
func (c *checkedCluster) count() (unsafe, unchecked int) {
	for i := range c.Findings {
		if c.Findings[i].Unchecked {
			unchecked++
		} else {
			unsafe++
		}
	}
	if c.Error != "" {
		unchecked++
	}
	return unsafe, unchecked
}

// state describes the result in a few words.
func (c *checkedCluster) state() string {
	unsafe, unchecked := c.count()
	switch {
	case unsafe == 1:
		return "1 finding"
	case unsafe > 1:
		return fmt.Sprintf("%d findings", unsafe)
	case unchecked > 0:
		return "not checked completely"
	}
	return stateSafe
}

// verdict returns the error that the command exits with.
func (a *checked) verdict() error {
	unsafe, unchecked := 0, []string{}
	for i := range a.Items {
		n, m := a.Items[i].count()
		unsafe += n
		if m > 0 {
			unchecked = append(unchecked, a.Items[i].Cluster)
		}
	}
	switch {
	case unsafe > 0:
		return cli.ErrDenied
	case len(unchecked) > 0:
		return fmt.Errorf("not checked completely: %s", cli.Listed(unchecked))
	}
	return nil
}

// Names returns the names of the Clusters that are not known to be safe.
func (a *checked) Names() []string {
	var names []string
	for i := range a.Items {
		if a.Items[i].state() != stateSafe && !slices.Contains(names, a.Items[i].Cluster) {
			names = append(names, a.Items[i].Cluster)
		}
	}
	return names
}

// Text lists the findings.
func (a *checked) Text() string { return a.table(false) }

// Wide lists the findings and the Clusters without findings.
func (a *checked) Wide() string { return a.table(true) }

func (a *checked) table(all bool) string {
	header, several := "CLUSTER\tCHECK\tOBJECT\tCAUSE\tREMEDY", false
	for i := range a.Items {
		several = several || a.Items[i].Plan != a.Items[0].Plan
	}
	var rows [][]string
	safe := 0
	add := func(c *checkedCluster, cells ...string) {
		cells = append([]string{c.Cluster}, cells...)
		if several {
			cells = append([]string{c.Plan}, cells...)
		}
		rows = append(rows, cli.PlainCells(cells...))
	}
	for i := range a.Items {
		c := &a.Items[i]
		for _, f := range c.Findings {
			cause := f.Cause
			if f.Detail != "" {
				cause += " (" + f.Detail + ")"
			}
			add(c, f.Check, f.Object, cause, f.Remedy)
		}
		isSafe := c.state() == stateSafe
		switch {
		case c.Error != "":
			add(c, "", "", "not checked: "+c.Error, "correct the cause, and check again")
		case isSafe && all:
			add(c, "", "", stateSafe, "-") // without the last cell, the columns would not be aligned
		}
		if isSafe {
			safe++
		}
	}
	if several {
		header = "PLAN\t" + header
	}
	var b strings.Builder
	if len(rows) > 0 {
		b.WriteString(cli.Table(header, rows))
	}
	if len(a.Items) > 0 && !all {
		fmt.Fprintf(&b, "%d of %d Clusters are safe to upgrade.\n", safe, len(a.Items))
	}
	return b.String()
}
