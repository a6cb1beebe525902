// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestRunRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"an unknown command":           {[]string{"dance"}, `unknown command "dance"`},
		"up without a folder":          {[]string{"up"}, "--dir is required"},
		"down without a folder":        {[]string{"down"}, "--dir is required"},
		"what is not a flag":           {[]string{"down", "--dir", "x", "y"}, `unexpected argument "y"`},
		"a program that is not known":  {[]string{"build", "kube-nothing"}, `unknown program "kube-nothing"`},
		"a user that has no name":      {[]string{"up", "--dir", "x", "--user", ":group"}, "give each user a name"},
		"a flag that up does not have": {[]string{"up", "--nodes", "3"}, "-nodes"},
	} {
		t.Run(name+" is refused with a reason", func(t *testing.T) {
			var out, progress bytes.Buffer
			err := run(t.Context(), c.args, &out, &progress)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q in it", err, c.want)
			}
			if out.Len() > 0 {
				t.Errorf("it printed %q as a result", out.String())
			}
		})
	}
}

func TestTheVersionIsPrinted(t *testing.T) {
	for _, word := range []string{"version", "--version"} {
		var out bytes.Buffer
		if err := run(t.Context(), []string{word}, &out, &out); err != nil || strings.TrimSpace(out.String()) == "" {
			t.Errorf("%s: %q, %v, want help and no error", word, &out, err)
		}
	}
}

func TestHelpIsPrinted(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), nil, &out, &out); err != nil || !strings.Contains(out.String(), "labctl up --dir") {
		t.Errorf("got %q, %v", out.String(), err)
	}
}
