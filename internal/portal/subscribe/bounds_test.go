// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/drover-dev/drover/test/testkit"
)

// Users decide how large their objects are, and how often they change. Neither may exhaust the memory of a replica.
// CVE-2024-58259 is of this class.
func TestKeptMessagesAreLimited(t *testing.T) {
	clusters := New(Options{Now: time.Now}).feeds["clusters"]
	send := func(name string, version, size int) {
		t.Helper()
		o := cluster("a", name, version)
		o.Status.Version = strings.Repeat("x", size)
		clusters.put(o, false)
		last, _ := clusters.after(uint64(version-1), 1)
		if len(last) != 1 {
			t.Fatalf("got %d changes", len(last))
		}
		for range 2 {
			if _, err := clusters.frame(last[0], true); err != nil {
				t.Fatal(err)
			}
		}
	}
	held := func() (count, bytes int) { return clusters.frames.kept.Len(), clusters.frames.bytes }
	const large = 1 << 20
	version := 0
	for range 50 {
		version++
		send("one", version, large)
	}
	if count, bytes := held(); count != 1 || bytes < large || bytes > 2*large {
		t.Errorf("after 50 changes of one object, %d messages with %d bytes are kept", count, bytes)
	}
	for i := range 50 {
		version++
		send(fmt.Sprint("c", i), version, large)
	}
	if count, bytes := held(); bytes > framesBytes || count < framesBytes/(2*large) {
		t.Errorf("after 50 large objects, %d messages with %d bytes are kept", count, bytes)
	}
	version++
	send("huge", version, 2*framesBytes)
	for i := range 2 * framesKept {
		version++
		send(fmt.Sprint("small", i), version, 1)
	}
	if count, bytes := held(); count != framesKept || bytes > framesKept<<10 {
		t.Errorf("after many small objects, %d messages with %d bytes are kept", count, bytes)
	}
}

func TestKeptMessageIsReturnedOnlyForItsOwnChange(t *testing.T) {
	f := newFrames()
	older, newer := object{seq: 1}, object{seq: 2}
	first, second := new(websocket.PreparedMessage), new(websocket.PreparedMessage)
	f.add(newer, second, 1)
	f.add(older, first, 1) // from a slower stream
	if f.get(newer) != second || f.get(older) != nil || f.bytes != 1 {
		t.Errorf("the messages %v and %v with %d bytes are kept, want only the newer one", f.get(newer), f.get(older),
			f.bytes)
	}
}

func TestClientOnASlowConnectionIsPinged(t *testing.T) {
	t.Parallel()
	h := newHub(t, testkit.Shared(t))
	h.server.pings = 5 * time.Millisecond
	a := h.Workspace(t)
	user := "line-" + a
	h.grant(t, user, a)
	h.follow(t, user, "?kind=clusters&namespace="+a).bookmarked() // the feed has begun
	const count = 100
	for i := range count { // more than the buffers of a connection can hold
		o := cluster(a, fmt.Sprint("c", i), 1<<50+i)
		o.Status.Version = strings.Repeat("x", 256<<10)
		h.server.feeds["clusters"].see(h.server, o, false)
	}
	c := h.follow(t, user, "?kind=clusters&namespace="+a)
	line := time.NewTicker(5 * time.Millisecond)
	defer line.Stop()
	pings := 0
	answer := c.conn.PingHandler()
	c.conn.SetPingHandler(func(data string) error { pings++; return answer(data) })
	for len(c.has) < count {
		if err := c.read(); err != nil {
			t.Fatal(err)
		}
		<-line.C
	}
	if pings == 0 {
		t.Error("no ping arrived before the last object, so a client that needs more than a minute for all objects would " +
			"be considered gone and would start again forever")
	}
}

func TestResumedStreamGetsADeletionThatTheHubMissed(t *testing.T) {
	h := newHub(t, testkit.Shared(t))
	a := h.Workspace(t)
	user := "lost-" + a
	h.grant(t, user, a)
	query := "?kind=clusters&namespace=" + a
	one, two := h.cluster(t, a, "one", ""), h.cluster(t, a, "two", "")
	c := h.follow(t, user, query)
	c.until("clusters", a+"/one", a+"/two")
	for round := 0; parse(c.mark).Versions["clusters"] < h.version(t, one); round++ { // until the token covers it
		h.show(t, two, fmt.Sprint("v", round))
		c.bookmarked()
	}
	_ = c.conn.Close()
	resumed := h.follow(t, user, query+"&resume="+c.mark)
	resumed.has = c.has
	h.server.feeds["clusters"].see(h.server, toolscache.DeletedFinalStateUnknown{Key: a + "/one", Obj: one}, true)
	for {
		if _, there := resumed.has["clusters/"+a+"/one"]; !there {
			break
		}
		if err := resumed.read(); err != nil {
			t.Fatalf("the client still has %v, want the deletion to be sent: %v", resumed.has, err)
		}
	}
	for _, m := range resumed.seen {
		if m.Type == typeReset {
			t.Error("the stream started from the beginning, want it resumed")
		}
	}
}

func TestResumeTokenThatIsNewerThanTheHubStartsFromTheBeginning(t *testing.T) {
	h := newHub(t, testkit.Shared(t))
	a := h.Workspace(t)
	user := "restored-" + a
	h.grant(t, user, a)
	query := "?kind=clusters&namespace=" + a
	h.cluster(t, a, "one", "")
	c := h.follow(t, user, query)
	c.until("clusters", a+"/one")
	mark := resume{Versions: map[string]uint64{"clusters": 1 << 50}, Rights: parse(c.bookmarked()).Rights}.String()
	again := h.follow(t, user, query+"&resume="+mark)
	if err := again.read(); err != nil || again.seen[0].Type != typeReset {
		t.Fatalf("the first message is %+v (%v), want a reset, because a restored hub's changes would be mistaken for "+
			"changes that were already sent", again.seen, err)
	}
	again.until("clusters", a+"/one")
}

func TestStreamEndsIfItsRightsCannotBeReviewed(t *testing.T) {
	h := newHub(t, testkit.Shared(t))
	h.server.doubt = 300 * time.Millisecond
	c := h.follow(t, "heidi", "?kind=plans")
	c.bookmarked()
	h.mu.Lock()
	h.away = true
	h.mu.Unlock()
	if code := c.code(); code != websocket.CloseTryAgainLater {
		t.Errorf("the stream ended with %d", code)
	}
	if _, response, err := h.dial("", http.Header{"Authorization": {"Bearer heidi"}}); err == nil ||
		response.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("the next stream got %v, want 503", response)
	}
}
