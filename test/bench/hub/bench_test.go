// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	v1 "github.com/drover-dev/drover/api/v1"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/registration"
)

func TestTheManifestOfAnAgentHasNoPods(t *testing.T) {
	manifest, err := new(registration.Manifests).Manifest(registration.ManifestInput{Image: "drover:v1", Token: strings.Repeat("t", 40), Trust: v1.TrustSystem,
		Settings: protocol.Settings{Servers: []string{"https://hub.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = withoutPods(manifest); err != nil {
		t.Fatal(err)
	}
	for document := range strings.SplitSeq(string(manifest), "\n---\n") {
		deployment := appsv1.Deployment{}
		if err := yaml.Unmarshal([]byte(document), &deployment); err != nil || deployment.Kind != "Deployment" {
			continue
		}
		if n := deployment.Spec.Replicas; n == nil || *n != 0 {
			t.Errorf("the Deployment has replicas %v, want 0", n)
		}
		return
	}
	t.Error("no Deployment in the manifest")
}

func TestQuantilesAreByNearestRank(t *testing.T) {
	r := newResults()
	for i := 100; i > 0; i-- {
		r.add("hundred", float64(i))
	}
	r.add("one", 7)
	for name, tc := range map[string]struct {
		of      string
		q, want float64
	}{
		"the median of 1 to 100 is the 50th":      {"hundred", 0.5, 50},
		"the 99th percentile of them is the 99th": {"hundred", 0.99, 99},
		"the worst is the last":                   {"hundred", 1, 100},
		"a single value is every quantile":        {"one", 0.01, 7},
	} {
		t.Run(name, func(t *testing.T) {
			if got := r.quantile(tc.of, tc.q); got != tc.want {
				t.Errorf("got %v, want %v", got, tc.want)
			}
		})
	}
	t.Run("what was not measured is no number", func(t *testing.T) {
		if got := r.median("nothing"); !math.IsNaN(got) {
			t.Errorf("got %v", got)
		}
	})
}

const metrics = `# HELP apiserver_request_total Counter
apiserver_request_total{code="200",dry_run="",resource="leases",verb="PUT"} 12
apiserver_request_total{code="201",resource="secrets",verb="POST"} 3
apiserver_request_total{code="409",resource="secrets",verb="POST"} 1
apiserver_request_total{code="200",resource="secrets",verb="LIST"} 50
apiserver_request_total_other{resource="secrets",verb="POST"} 1000
go_goroutines 123
`

func TestMetricsAreRead(t *testing.T) {
	t.Run("writes are counted by resource, whatever their outcome, and reads are not", func(t *testing.T) {
		if got, want := writesIn(metrics), map[string]float64{"leases": 12, "secrets": 4}; !maps.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	})
	t.Run("a metric without labels is found", func(t *testing.T) {
		if got, ok := gauge(metrics, "go_goroutines"); !ok || got != 123 {
			t.Errorf("got %v %v", got, ok)
		}
	})
	t.Run("one that is not there is not zero", func(t *testing.T) {
		if _, ok := gauge(metrics, "go_threads"); ok {
			t.Error("found")
		}
	})
}

func TestWritesOnTheHubAreWithoutThoseOfAnyControlPlane(t *testing.T) {
	b := &bench{results: newResults()}
	hub := &writeCount{took: 2 * time.Minute, byResource: map[string]float64{"leases": 40, "clusters": 6, "endpoints": 10}}
	b.alone = &writeCount{
		took: 2 * time.Minute, byResource: map[string]float64{"leases": 20, "endpoints": 12, "events": 9},
	}
	b.noteWrites(hub)
	for name, want := range map[string]float64{
		"writes": 3, "writes-alone": 10.5, "leases": 20, "leases-alone": 10,
	} {
		if got := b.results.median(name); got != want {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
	if len(b.results.notes) != 1 || !strings.Contains(b.results.notes[0], "clusters 3.0, endpoints 5.0, leases 20.0; ") {
		t.Errorf("notes: %q", b.results.notes)
	}
}

// The agents of the bench renew their leases in the member, so its writes are a floor only before they join.
func TestWritesOfAControlPlaneAloneAreCountedBeforeAnyAgentJoins(t *testing.T) {
	var order []string
	for _, s := range (&bench{}).steps() {
		order = append(order, s.what)
	}
	alone, joins := slices.Index(order, stepAlone), slices.Index(order, stepFirstJoin)
	if alone < 0 || joins < 0 || alone > joins {
		t.Errorf("got the steps %q, want %q before %q", order, stepAlone, stepFirstJoin)
	}
}

func TestGoroutinesOfADumpAreCounted(t *testing.T) {
	dump := "SIGQUIT: quit\nPC=0x1 m=0\n\ngoroutine 0 gp=0x1 m=0 [idle]:\nruntime.futex()\n\n" +
		"goroutine 1 gp=0xc0 m=nil [chan receive]:\nmain.main()\ncreated by x in goroutine 7\n\ngoroutine 12 [select, 3 minutes]:\nmain.f()\n"
	if got := countGoroutines(dump); got != 2 {
		t.Errorf("got %d, want 2", got)
	}
}

func TestTheTableJudgesWhatWasMeasured(t *testing.T) {
	e := newExtent(false, true)
	find := func(r *results, what string) row {
		t.Helper()
		for _, row := range rows(r, e) {
			if strings.HasPrefix(row.what, what) {
				return row
			}
		}
		t.Fatalf("no row %q", what)
		return row{}
	}
	t.Run("what was not measured has no outcome", func(t *testing.T) {
		for _, row := range rows(newResults(), e) {
			if row.outcome() != "" && row.measured == "" {
				t.Errorf("%s: %s, want no outcome of what was not measured", row.what, row.outcome())
			}
		}
	})
	t.Run("a goal against direct access moves with it", func(t *testing.T) {
		r := newResults()
		r.add("get-1-direct", 1.5)
		r.add("get-1-direct-rate", 600)
		r.add("get-1-hub", 2.2)
		r.add("get-1-hub-rate", 400)
		if row := find(r, "GET of a ConfigMap"); row.outcome() != "ok" {
			t.Errorf("the row is %+v, want ok", row)
		}
		r.values["get-1-direct"][0] = 1.3
		if row := find(r, "GET of a ConfigMap"); row.outcome() != "missed" {
			t.Errorf("the row is %+v, want missed", row)
		}
	})
	t.Run("what a member adds is shared out among the members that were added", func(t *testing.T) {
		r := newResults()
		r.add("manager-one-rested-rss", 40)
		r.add("manager-many-rested-rss", 43)
		if got := r.perMember("rested-rss", 30); got != 0.1 {
			t.Errorf("got %v MiB", got)
		}
		if row := find(r, "manager, resident memory for each idle member"); row.outcome() != "" { // the anonymous part is missing
			t.Errorf("the row is %+v, want no outcome", row)
		}
	})
	t.Run("one write a minute is more than none", func(t *testing.T) {
		r := newResults()
		r.add("writes", 1)
		if row := find(r, "writes on the hub"); row.outcome() != "missed" {
			t.Errorf("the row is %+v, want missed", row)
		}
	})
}
