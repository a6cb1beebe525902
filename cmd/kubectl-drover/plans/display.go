// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package plans

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/term"
	"k8s.io/apimachinery/pkg/api/meta"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/cmd/kubectl-drover/cli"
)

const (
	barWidth  = 30
	nameWidth = 20

	cutLines, wrapLines = "\x1b[?7l", "\x1b[?7h" // terminal codes that turn the wrapping of long lines off and on
)

// display shows the progress of a plan. Create one with newDisplay.
type display struct {
	out      io.Writer
	terminal bool
	now      func() time.Time

	drawn int    // the number of lines that the current picture occupies on the terminal
	last  string // the most recently written line
	// first is the time when the display first read the plan. done is the number of nodes that were complete at that time.
	// The remaining time is estimated from the progress since then.
	first time.Time
	done  int32
}

func newDisplay(out io.Writer) *display {
	if through, ok := out.(cli.Terminal); ok {
		out = through.Out // the display writes terminal codes, and it applies Plain itself to untrusted text
	}
	d := &display{out: out, now: time.Now}
	if file, ok := out.(*os.File); ok {
		d.terminal = term.IsTerminal(int(file.Fd()))
	}
	return d
}

// plan shows a plan. The done result is true if the command must end, because the plan is complete or has stalled
// (ErrDenied), or because it cannot be shown.
func (d *display) plan(p *v1.Plan) (done bool, err error) {
	if d.first.IsZero() {
		d.first = d.now()
		if p.Status.Nodes != nil {
			d.done = p.Status.Nodes.Complete
		}
	}
	text := d.line(p)
	if d.terminal {
		text = d.picture(p)
	}
	done, verdict := ended(p)
	if err := d.write(text, done); err != nil {
		return true, fmt.Errorf("show plan %s: %w", p.Name, err)
	}
	return done, verdict
}

// ended reports whether a plan is complete or requires manual action. It also returns the error that the command exits
// with.
func ended(p *v1.Plan) (bool, error) {
	current := p.Status.ObservedGeneration == p.Generation
	switch {
	case current && meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled):
		return true, cli.ErrDenied
	case current && meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionComplete):
		return true, nil
	}
	return false, nil
}

// unreadable shows the reason why the plan cannot be read.
func (d *display) unreadable(err error) error {
	text := "trying again: " + cli.Plain(cli.Unreached(err).Error())
	if d.terminal {
		text += "\n"
	}
	return d.write(text, false)
}

// write writes a line or redraws the display, unless nothing has changed. It truncates lines at the edge of the
// terminal, so that the display can be redrawn at the same position. The final output is not truncated.
func (d *display) write(text string, last bool) error {
	if text == d.last {
		return nil
	}
	d.last = text
	if !d.terminal {
		_, err := io.WriteString(d.out, d.now().UTC().Format(time.RFC3339)+" "+text+"\n")
		return err
	}
	if !last {
		text = cutLines + text + wrapLines
	}
	if d.drawn > 0 {
		text = fmt.Sprintf("\x1b[%dA\x1b[J%s", d.drawn, text)
	}
	d.drawn = strings.Count(d.last, "\n")
	_, err := io.WriteString(d.out, text)
	return err
}

func (d *display) line(p *v1.Plan) string {
	reason, message := stateOf(p)
	parts := []string{fmt.Sprintf("%s: nodes %s", reason, summary(p.Status.Nodes))}
	if p.Status.Clusters != nil { // a plan without a target runs in the cluster itself and has no clusters
		parts[0] = fmt.Sprintf("%s: clusters %s, nodes %s", reason, summary(p.Status.Clusters), summary(p.Status.Nodes))
	}
	for _, w := range p.Status.Waves {
		parts = append(parts, fmt.Sprintf("%s %s%s", cli.Plain(w.Name), cli.Plain(w.Clusters.Summary), approval(&w)))
	}
	if len(p.Status.Applying) > 0 {
		a := p.Status.Applying[0]
		parts = append(parts, fmt.Sprintf("%s %s", place(a.Cluster, a.Node), a.Stage))
	}
	if len(p.Status.Failures) > 0 {
		parts = append(parts, failure(&p.Status.Failures[0]))
	}
	return strings.Join(append(parts, message), "; ")
}

// picture describes a plan in several lines for the display.
func (d *display) picture(p *v1.Plan) string {
	var b strings.Builder
	reason, message := stateOf(p)
	fmt.Fprintf(&b, "%s  %s  %s\n", p.Name, cli.Plain(p.Status.LatestVersion), reason)
	fmt.Fprintf(&b, "%s\n", message)
	row := func(name string, c *v1.PlanCount, more string) {
		fmt.Fprintf(&b, "%-*.*s %s %s%s\n", nameWidth, nameWidth, cli.Plain(name), bar(c), summary(c), more)
	}
	for _, w := range p.Status.Waves {
		more := approval(&w)
		if w.SoakUntil != nil && w.SoakUntil.After(d.now()) {
			more += "  soaks for " + w.SoakUntil.Sub(d.now()).Round(time.Second).String()
		}
		row(w.Name, &w.Clusters, more)
	}
	row("nodes", p.Status.Nodes, d.left(&p.Status))
	for _, m := range p.Status.Members {
		fmt.Fprintf(&b, "  %-*.*s %-8s %-16s %s\n", nameWidth, nameWidth, cli.Plain(m.Name), cli.Plain(m.Nodes),
			cli.Plain(m.Reason), d.now().Sub(m.Since.Time).Round(time.Second))
	}
	for _, a := range p.Status.Applying {
		fmt.Fprintf(&b, "    %s  %s  attempt %d  %s\n", place(a.Cluster, a.Node), a.Stage, a.Attempt,
			d.now().Sub(a.Since.Time).Round(time.Second))
	}
	for i := range p.Status.Failures {
		fmt.Fprintf(&b, "    %s\n", failure(&p.Status.Failures[i]))
	}
	if p.Status.Gates != nil {
		for i := range p.Status.Gates.Findings {
			fmt.Fprintf(&b, "    %s\n", finding(&p.Status.Gates.Findings[i]))
		}
		for _, o := range p.Status.Gates.Overrides {
			fmt.Fprintf(&b, "    %s overridden by %s: %s\n", cli.Plain(o.Check), cli.Plain(o.OverriddenBy), cli.Plain(o.Reason))
		}
	}
	return b.String()
}

// approval describes the approval of a wave that requires one.
func approval(w *v1.WaveStatus) string {
	switch {
	case w.Approval == nil:
		return ""
	case w.Approval.ApprovedBy == "":
		return "  not approved"
	}
	return "  approved by " + cli.Plain(w.Approval.ApprovedBy)
}

// place returns the name of a node, preceded by the name of its member if the node belongs to one.
func place(cluster, node string) string { return cli.Plain(strings.TrimPrefix(cluster+"/"+node, "/")) }

// failure describes why a node failed, and includes the last line of the node's log.
func failure(f *v1.NodeFailure) string {
	text := fmt.Sprintf("%s failed (%s): %s", place(f.Cluster, f.Node), cli.Plain(f.Reason), cli.Plain(f.Message))
	log := strings.TrimSpace(f.Log)
	if last := log[strings.LastIndexByte(log, '\n')+1:]; last != "" {
		text += ", its log ends with " + strconv.Quote(cli.Plain(last))
	}
	return text
}

// left estimates the time until the plan is complete. The estimate is based on the progress since the plan was first
// read, and assumes that the remaining members are similar to the members that have made progress.
func (d *display) left(s *v1.PlanStatus) string {
	if s.Nodes == nil || s.Clusters == nil || s.Nodes.Complete <= d.done {
		return ""
	}
	begun := s.Clusters.Complete + s.Clusters.Applying + s.Clusters.Failed
	if begun == 0 {
		return ""
	}
	total := float64(s.Nodes.Total) * float64(s.Clusters.Total) / float64(begun)
	each := d.now().Sub(d.first) / time.Duration(s.Nodes.Complete-d.done)
	remaining := time.Duration(max(0, total-float64(s.Nodes.Complete))) * each
	if remaining == 0 {
		return ""
	}
	return "  about " + remaining.Round(time.Second).String() + " left"
}

// bar draws complete parts as "#", parts in progress as ">" and failed parts as "!".
func bar(c *v1.PlanCount) string {
	if c == nil || c.Total <= 0 {
		return "[" + strings.Repeat(".", barWidth) + "]"
	}
	var b strings.Builder
	for _, part := range []struct {
		sign string
		n    int32
	}{{"#", c.Complete}, {"!", c.Failed}, {">", c.Applying}} {
		width := int(int64(max(part.n, 0)) * barWidth / int64(c.Total))
		if part.n > 0 {
			width = max(width, 1)
		}
		b.WriteString(strings.Repeat(part.sign, min(width, barWidth-b.Len())))
	}
	return "[" + b.String() + strings.Repeat(".", barWidth-b.Len()) + "]"
}

func summary(c *v1.PlanCount) string {
	if c == nil {
		return "0/0"
	}
	return fmt.Sprintf("%d/%d", c.Complete, c.Total)
}

// stateOf returns the reason and message of a plan's state.
func stateOf(p *v1.Plan) (reason, message string) {
	c := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionComplete)
	if c == nil {
		return "Pending", "waiting for Drover"
	}
	return cli.Plain(c.Reason), cli.Plain(c.Message)
}
