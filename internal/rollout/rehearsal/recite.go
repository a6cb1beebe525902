// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package rehearsal

import (
	"fmt"
	"io"
	"time"
)

// Recite plays a script and writes each step with its time, then what the play ends with.
func Recite(s Script, out io.Writer) error {
	play, err := New(s)
	if err != nil {
		return err
	}
	start, steps := play.Now, 0
	play.Observe = func(l Line) error {
		steps++
		_, err := fmt.Fprintf(out, "%s  %-10s  %-12s %-14s %-9s %s\n", l.At.UTC().Format(time.RFC3339), "+"+l.At.Sub(start).String(), l.Cluster, l.Node, l.Verb, l.Note)
		return err
	}
	why, err := play.Run()
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s: %s\n%d steps in %s\n", why.Reason, why.Message, steps, play.Now.Sub(start).Round(time.Second))
	return err
}
