// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

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
)

const (
	barWidth  = 30
	nameWidth = 20

	cutLines, wrapLines = "\x1b[?7l", "\x1b[?7h" // what a terminal does with lines that are too long
)

// display shows a plan while it goes on. newDisplay makes it.
type display struct {
	out      io.Writer
	terminal bool
	now      func() time.Time

	drawn int    // lines of the picture that is on the terminal
	last  string // line that was written last
	// first is when the plan was looked at first, and done how many nodes were complete then: the pace is measured from there.
	first time.Time
	done  int32
}

func newDisplay(out io.Writer) *display {
	if through, ok := out.(terminal); ok {
		out = through.out // the display writes codes of its own, and makes plain what is others'
	}
	d := &display{out: out, now: time.Now}
	if file, ok := out.(*os.File); ok {
		d.terminal = term.IsTerminal(int(file.Fd()))
	}
	return d
}

// plan shows a plan as it is now, and reports whether there is nothing to wait for: it is complete or, with errDenied, stalled, or cannot be shown.
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

// ended reports whether a plan, as it is now, waits for nothing except a person, and the error to exit with.
func ended(p *v1.Plan) (bool, error) {
	current := p.Status.ObservedGeneration == p.Generation
	switch {
	case current && meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionStalled):
		return true, errDenied
	case current && meta.IsStatusConditionTrue(p.Status.Conditions, v1.ConditionComplete):
		return true, nil
	}
	return false, nil
}

// unreadable shows why the plan cannot be read.
func (d *display) unreadable(err error) error {
	text := "trying again: " + plain(unreached(err).Error())
	if d.terminal {
		text += "\n"
	}
	return d.write(text, false)
}

// write writes a line, or draws a picture in place of the last; nothing if there is no news. Lines of a picture are cut at the edge, so that it can
// be found again; those of the last one are not.
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

// line is a plan in one line.
func (d *display) line(p *v1.Plan) string {
	reason, message := stateOf(p)
	parts := []string{fmt.Sprintf("%s: nodes %s", reason, summary(p.Status.Nodes))}
	if p.Status.Clusters != nil { // a member's own plan has none
		parts[0] = fmt.Sprintf("%s: clusters %s, nodes %s", reason, summary(p.Status.Clusters), summary(p.Status.Nodes))
	}
	for _, w := range p.Status.Waves {
		parts = append(parts, fmt.Sprintf("%s %s", plain(w.Name), plain(w.Clusters.Summary)))
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

// picture is a plan in several lines.
func (d *display) picture(p *v1.Plan) string {
	var b strings.Builder
	reason, message := stateOf(p)
	fmt.Fprintf(&b, "%s  %s  %s\n", p.Name, plain(p.Status.LatestVersion), reason)
	fmt.Fprintf(&b, "%s\n", message)
	row := func(name string, c *v1.PlanCount, more string) {
		fmt.Fprintf(&b, "%-*.*s %s %s%s\n", nameWidth, nameWidth, plain(name), bar(c), summary(c), more)
	}
	for _, w := range p.Status.Waves {
		more := ""
		if w.SoakUntil != nil && w.SoakUntil.After(d.now()) {
			more = "  soaks for " + w.SoakUntil.Sub(d.now()).Round(time.Second).String()
		}
		row(w.Name, &w.Clusters, more)
	}
	row("nodes", p.Status.Nodes, d.left(&p.Status))
	for _, m := range p.Status.Members {
		fmt.Fprintf(&b, "  %-*.*s %-8s %-16s %s\n", nameWidth, nameWidth, plain(m.Name), plain(m.Nodes), plain(m.Reason), d.now().Sub(m.Since.Time).Round(time.Second))
	}
	for _, a := range p.Status.Applying {
		fmt.Fprintf(&b, "    %s  %s  attempt %d  %s\n", place(a.Cluster, a.Node), a.Stage, a.Attempt, d.now().Sub(a.Since.Time).Round(time.Second))
	}
	for i := range p.Status.Failures {
		fmt.Fprintf(&b, "    %s\n", failure(&p.Status.Failures[i]))
	}
	return b.String()
}

// place is a node of a member, or of the only cluster.
func place(cluster, node string) string { return plain(strings.TrimPrefix(cluster+"/"+node, "/")) }

// failure is why a node failed, with the last line of its log.
func failure(f *v1.NodeFailure) string {
	text := fmt.Sprintf("%s failed (%s): %s", place(f.Cluster, f.Node), plain(f.Reason), plain(f.Message))
	log := strings.TrimSpace(f.Log)
	if last := log[strings.LastIndexByte(log, '\n')+1:]; last != "" {
		text += ", its log ends with " + strconv.Quote(plain(last))
	}
	return text
}

// left is how long it takes until all is complete, at the pace since it was looked at first, if members that have not begun are like those that have.
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

// bar has "#" for what is complete, ">" for what is at work and "!" for what failed.
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

// stateOf is what a plan says of itself.
func stateOf(p *v1.Plan) (reason, message string) {
	c := meta.FindStatusCondition(p.Status.Conditions, v1.ConditionComplete)
	if c == nil {
		return "Pending", "waiting for Drover"
	}
	return plain(c.Reason), plain(c.Message)
}
