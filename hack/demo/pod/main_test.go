// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestCommandsOfPlans(t *testing.T) {
	for name, c := range map[string]struct {
		program string
		args    []string
		takes   time.Duration
		want    string // in the error
	}{
		"an upgrade takes some seconds":             {"upgrade", nil, upgradeTakes, ""},
		"sleep takes its seconds":                   {"sleep", []string{"60"}, time.Minute, ""},
		"sleep takes a unit too":                    {"sleep", []string{"2m"}, 2 * time.Minute, ""},
		"sleep without a time that it knows fails":  {"sleep", []string{"long"}, 0, "invalid time interval 'long'"},
		"sleep for less than no time fails":         {"sleep", []string{"-1"}, 0, "invalid time interval '-1'"},
		"false fails and says so":                   {"false", nil, 0, "this always fails"},
		"another program fails, and says which are": {"sh", []string{"-c", "true"}, 0, "there are web, get URL"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start, out := time.Now(), bytes.Buffer{}
				err := run(t.Context(), c.program, c.args, &out)
				if took := time.Since(start); took != c.takes {
					t.Errorf("it took %s, want %s", took, c.takes)
				}
				if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
					t.Errorf("the error is %v, want %q in it", err, c.want)
				}
			})
		})
	}
	t.Run("a pod that is deleted ends at once", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := run(ctx, "sleep", []string{"60"}, &bytes.Buffer{}); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that it was cancelled", err)
		}
	})
}
