// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/drover-dev/drover/api/v1"
)

func cluster(namespace, name string, version int) *v1.Cluster {
	return &v1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name,
		ResourceVersion: strconv.Itoa(version)}}
}

// read lists the changes after a position as name=version, or as -name for a deletion.
func read(t *testing.T, c *changes, seq uint64) (string, bool) {
	t.Helper()
	batch, known := c.after(seq, 1000)
	var list []string
	for _, o := range batch {
		if o.content == nil {
			list = append(list, "-"+o.Name)
			continue
		}
		list = append(list, fmt.Sprintf("%s=%d", o.Name, o.version))
	}
	return strings.Join(list, " "), known
}

func TestReaderGetsTheLastStateOfEachObject(t *testing.T) {
	c := newChanges(time.Now)
	c.put(cluster("a", "one", 1), false)
	c.put(cluster("a", "two", 2), false)
	c.put(cluster("b", "three", 3), false)
	at := c.end().seq
	c.put(cluster("a", "one", 4), false)
	c.put(cluster("a", "two", 5), true)
	c.put(cluster("a", "one", 6), false)
	c.put(cluster("a", "none", 7), true)
	for _, tt := range []struct {
		name string
		seq  uint64
		want string
	}{
		{"a new reader gets each object once, in the order of the last changes", 0, "three=3 -two one=6"},
		{"a continuing reader gets the changes since, and no states in between", at, "-two one=6"},
		{"a reader that has read everything gets nothing", c.end().seq, ""},
	} {
		if got, known := read(t, c, tt.seq); got != tt.want || !known {
			t.Errorf("%s: got %q (%v), want %q", tt.name, got, known, tt.want)
		}
	}
	if got := c.namespaces(); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("got objects in %v", got)
	}
	c.put(cluster("b", "three", 8), true)
	if got := c.namespaces(); !slices.Equal(got, []string{"a"}) {
		t.Errorf("got objects in %v after the last one in b was deleted", got)
	}
	c.put(cluster("b", "three", 9), false)
	if got, _ := read(t, c, at); got != "-two one=6 three=9" {
		t.Errorf("an object that was deleted and recreated is %q", got)
	}
}

func TestOldDeletionsAreForgotten(t *testing.T) {
	c := newChanges(time.Now)
	c.forget(1)
	version := 1
	churn := func(n int) {
		for range n {
			version += 2
			c.put(cluster("a", fmt.Sprint("c", version), version-1), false)
			c.put(cluster("a", fmt.Sprint("c", version), version), true)
		}
	}
	c.put(cluster("a", "stays", 1), false)
	at := c.end()
	churn(mostDeleted)
	if _, known := c.after(at.seq, 1); !known || !c.since(1) {
		t.Fatalf("after %d deletions the first is forgotten, want it known", mostDeleted)
	}
	churn(1)
	if _, known := c.after(at.seq, 1); known || c.since(1) {
		t.Error("a reader that has missed deletions was not detected")
	}
	if _, known := c.after(c.end().seq, 1); !known || !c.since(uint64(version)) {
		t.Error("a reader that has read everything must start from the beginning, want it to continue")
	}
	if len(c.objects) > mostDeleted+1 || len(c.records) > 2*mostDeleted+slack {
		t.Errorf("%d objects and %d records are held, want few", len(c.objects), len(c.records))
	}
	if got, known := read(t, c, 0); !known || !strings.HasPrefix(got, "stays=1 ") {
		t.Errorf("a new reader got %.40q (%v)", got, known)
	}
}

func TestVersionAdvancesOnceNoEarlierChangeCanArrive(t *testing.T) {
	now := time.Unix(1000, 0)
	c := newChanges(func() time.Time { return now })
	c.put(cluster("a", "one", 5), false)
	now = now.Add(2 * settles)
	if got := c.end().version; got != 5 {
		t.Errorf("after a quiet period the version is %d", got)
	}
	c.put(cluster("a", "two", 9), false) // from a list in any order
	if got := c.end().version; got != 5 {
		t.Errorf("within a burst the version is %d, so a change with version 7 would be missed", got)
	}
	c.put(cluster("a", "three", 7), false)
	now = now.Add(2 * settles)
	if got := c.end().version; got != 9 {
		t.Errorf("after the burst the version is %d", got)
	}
	for range 100 { // changes that do not stop
		now = now.Add(settles / 2)
		c.put(cluster("a", "busy", int(c.version)+1), false)
	}
	if got := c.end().version; got < 100 {
		t.Errorf("while changes do not stop, the version stays at %d of %d, want it to advance", got, c.version)
	}
	c.put(&v1.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "odd", ResourceVersion: "x"}}, false)
	if c.since(1 << 40) {
		t.Error("a stream was resumed at a version that cannot be compared")
	}
}

// TestEveryReaderReachesTheCurrentState lets readers of all speeds follow random changes. At the end, each reader must
// have the current objects.
func TestEveryReaderReachesTheCurrentState(t *testing.T) {
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		c := newChanges(time.Now)
		truth := map[string]uint64{}
		type reader struct {
			at  uint64
			has map[string]uint64
		}
		readers := make([]reader, 5)
		follow := func(r *reader, most int) int {
			batch, known := c.after(r.at, most)
			if !known || r.has == nil {
				*r = reader{has: map[string]uint64{}}
				batch, _ = c.after(0, most)
			}
			for _, o := range batch {
				r.at = o.seq
				if o.content == nil {
					delete(r.has, o.Name)
				} else {
					r.has[o.Name] = o.version
				}
			}
			return len(batch)
		}
		for version := range 30_000 {
			name := fmt.Sprint(random.IntN(12_000))
			gone := random.IntN(2) == 0
			c.put(cluster("a", name, version+1), gone)
			if gone {
				delete(truth, name)
			} else {
				truth[name] = uint64(version + 1)
			}
			for i := range readers {
				if random.IntN(1+i*i*1000) == 0 {
					follow(&readers[i], 1+random.IntN(10))
				}
			}
		}
		for i := range readers {
			for follow(&readers[i], 1000) > 0 {
			}
			if !maps.Equal(readers[i].has, truth) {
				t.Fatalf("seed %d: reader %d has %d objects, want %d", seed, i, len(readers[i].has), len(truth))
			}
		}
		if testing.Short() {
			return
		}
	}
}

func TestUnchangedRightsChangeNothing(t *testing.T) {
	asked := []string{}
	rights := map[string]bool{"clusters/a": true}
	failing := false
	may := func(_ context.Context, resource, workspace string) (bool, error) {
		asked = append(asked, resource+"/"+workspace)
		if failing {
			return false, fmt.Errorf("the API server is away")
		}
		return rights[resource+"/"+workspace], nil
	}
	k := subscribable()[0]
	first := k.ask(t.Context(), may, []string{"a", "b"}, scope{})
	if first.all || !first.workspaces["a"] || first.workspaces["b"] || first.incomplete ||
		!slices.Equal(asked, []string{"clusters/", "clusters/a", "clusters/b"}) {
		t.Fatalf("got %+v after the reviews %v", first, asked)
	}
	for _, tt := range []struct {
		name    string
		rights  map[string]bool
		failing bool
		spaces  []string
		same    bool
	}{
		{"the same rights", rights, false, []string{"a", "b"}, true},
		{"a new workspace", rights, false, []string{"a", "b", "c"}, true},
		{"rights that cannot be reviewed stay as they were", nil, true, []string{"a", "b"}, true},
		{"a revoked right", nil, false, []string{"a", "b"}, false},
		{"a revoked right in a workspace without objects", nil, false, nil, false},
		{
			"a right that was granted", map[string]bool{"clusters/a": true, "clusters/b": true}, false, []string{"a", "b"},
			false,
		},
		{"a right to all", map[string]bool{"clusters/": true}, false, []string{"a", "b"}, false},
	} {
		rights, failing = tt.rights, tt.failing
		if later := k.ask(t.Context(), may, tt.spaces, first); first.same(later) != tt.same {
			t.Errorf("%s: same returned %v for %+v, want the opposite", tt.name, !tt.same, later)
		}
	}
	t.Run("objects with unknown rights are not shown", func(t *testing.T) {
		failing = true
		if s := k.ask(t.Context(), may, []string{"a"}, scope{}); s.all || s.workspaces["a"] || !s.incomplete {
			t.Errorf("%+v", s)
		}
	})
	t.Run("the number of reviewed workspaces is limited", func(t *testing.T) {
		failing, asked, rights = false, nil, nil
		var many []string
		for i := range 3 * mostWorkspaces {
			many = append(many, fmt.Sprint("w", i))
		}
		if s := k.ask(t.Context(), may, many, scope{}); !s.incomplete || len(asked) != 1+mostWorkspaces {
			t.Errorf("got %d reviews, incomplete %v", len(asked), s.incomplete)
		}
	})
	t.Run("a kind without workspaces needs one review", func(t *testing.T) {
		asked, rights = nil, map[string]bool{"users/a": true}
		users := subscribable()[8]
		if s := users.ask(t.Context(), may, []string{""}, scope{}); s.all || s.look(t.Context(), users, may, "", scope{}) ||
			len(asked) != 1 {
			t.Errorf("got %+v after the reviews %v", s, asked)
		}
	})
}
