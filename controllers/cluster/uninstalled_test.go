// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/members"
)

func TestUninstallationEventNamesLeftoversWithReasons(t *testing.T) {
	event := uninstalled(members.Call{Stale: []string{"metrics.example.com/v1"}})
	if !event.Warning || event.Reason != v1.ReasonLeftBehind {
		t.Errorf("the event is %+v, want a warning LeftBehind", event)
	}
	for _, want := range []string{"drover-agent", "drover-plans", "NamespaceDeletionDiscoveryFailure", "metrics.example.com/v1", "APIService"} {
		if !strings.Contains(event.Message, want) {
			t.Errorf("the event says %q, want it to name %s", event.Message, want)
		}
	}
	if event := uninstalled(members.Call{}); event.Warning || event.Reason != v1.ReasonUninstalled {
		t.Errorf("the event is %+v, want Uninstalled", event)
	}
}
