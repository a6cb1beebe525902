// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/drover-dev/drover/agent/stream"
	"github.com/drover-dev/drover/internal/protocol"
)

func TestSetsAndPlansWaitForTheReport(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		read  bool          // the hub reads a report after a second
		ends  time.Duration // length of the leadership
		after time.Duration
		want  bool
	}{
		"until the hub has read it":              {true, time.Minute, time.Second, true},
		"for a limited time without a hub":       {false, time.Minute, reportFirst, true},
		"no longer than the replica leads":       {false, 2 * time.Second, 2 * time.Second, false},
		"not at all if the report has been read": {true, time.Minute, 0, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				d := &duties{stream: stream.New()}
				ctx, cancel := context.WithTimeout(t.Context(), tt.ends)
				defer cancel()
				report := d.stream.Topic(protocol.SubjectReport)
				report.Put("", &protocol.Line{Report: &protocol.Report{}})
				report.Sync()
				if tt.read {
					reading, stop := context.WithCancel(ctx)
					go func() {
						time.Sleep(tt.after)
						d.stream.ServeHTTP(httptest.NewRecorder(),
							httptest.NewRequestWithContext(reading, "GET", protocol.PathReport, nil))
					}()
					defer synctest.Wait()
					defer stop()
					if tt.after == 0 {
						synctest.Wait()
					}
				}
				began := time.Now()
				if got := d.awaitReport(ctx); got != tt.want || time.Since(began) != tt.after {
					t.Errorf("got %t after %s, want %t after %s", got, time.Since(began), tt.want, tt.after)
				}
			})
		})
	}
}
