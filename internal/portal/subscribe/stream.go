// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package subscribe

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/drover-dev/drover/internal/await"
	"github.com/drover-dev/drover/internal/identity"
	"github.com/drover-dev/drover/internal/identity/refusal"
)

const (
	pace         = 100 * time.Millisecond // the interval between checks for changes
	rightsEvery  = 20 * time.Second       // the interval between reviews of the user and their rights
	rightsLimit  = 15 * time.Second       // the time limit for a review
	doubtLimit   = 2 * time.Minute        // how long a stream may continue while rights cannot be reviewed
	bookmarks    = time.Second            // the minimum interval between bookmarks
	pingEvery    = 25 * time.Second
	silence      = 60 * time.Second // how long a client may be silent before it is considered gone
	writeLimit   = 10 * time.Second // the time limit for sending one message
	batch        = 256              // the number of changes that are read at a time
	unauthorized = 4401             // the close code for a user who is no longer authenticated
)

var (
	errUnauthorized = errors.New("the token is no longer valid: connect again with a new one")
	errMessage      = errors.New("the stream does not accept messages")
	errSlow         = errors.New("the client does not read")
	errDoubt        = errors.New("the hub cannot check your identity or your rights: connect again later")
)

// watched is the state of one kind in a stream.
type watched struct {
	feed *feed
	scope
	reach reach
	at    uint64 // the position in the changes
	until uint64 // deletions up to this position are not sent, because the deleted objects were never sent
	floor uint64 // the resource version up to which an earlier stream sent all changes
	sure  uint64 // the resource version up to which this stream has sent all changes
	reset bool   // whether a reset must be sent before anything else
	// recheck contains Clusters that have become reachable or unreachable because of a change to a binding.
	recheck []types.NamespacedName
}

type stream struct {
	*Server
	request *http.Request
	id      identity.Identity
	query   query
	kinds   []*watched

	conn    *websocket.Conn
	marks   marks
	certain time.Time // when the user and their rights were last confirmed
}

// begin determines which objects are visible to the user. It also determines where the stream starts.
func (st *stream) begin(ctx context.Context) {
	for _, k := range st.kinds {
		k.scope = k.feed.ask(ctx, st.may, st.workspaces(k), scope{})
		k.reach = st.reviewReach(ctx, k)
	}
	st.marks.unmanaged = st.Unmanaged(ctx, st.id)
	same := bytes.Equal(st.query.resume.Rights, st.digest())
	for _, k := range st.kinds {
		if version := st.query.resume.Versions[k.feed.Resource]; same && k.feed.since(version) &&
			st.reached(ctx, k, version) {
			k.floor, k.sure = version, version
		} else {
			k.restart()
		}
	}
	st.certain = time.Now()
}

// reached reports whether the hub has reached a resource version. If the hub was restored from an older backup, it
// might not have reached a version that was already sent. Without this check, new changes with smaller versions would
// be skipped.
func (st *stream) reached(ctx context.Context, k *watched, version uint64) bool {
	if version <= k.feed.newest() {
		return true
	}
	now, err := k.feed.latest(ctx, st.Live)
	return err == nil && version <= now
}

// workspaces returns the workspaces in the query that contain objects of a kind.
func (st *stream) workspaces(k *watched) []string {
	var list []string
	for _, workspace := range k.feed.namespaces() {
		if st.query.asks(workspace) {
			list = append(list, workspace)
		}
	}
	return list
}

func (st *stream) may(ctx context.Context, resource, workspace string) (bool, error) {
	return st.Watch(ctx, st.id, resource, workspace)
}

// digest returns a digest of everything that determines which objects the stream sends.
func (st *stream) digest() []byte {
	seen := map[string][]string{}
	for _, k := range st.kinds {
		if k.all {
			seen[k.feed.Resource] = []string{"*"}
			continue
		}
		seen[k.feed.Resource] = k.seen(st.workspaces(k))
		k.reach.seen(st, k, seen)
	}
	return digest(st.id.Hub.Username, st.query, seen)
}

// run sends messages to the client until the client or the server ends the stream. It returns the reason as one word.
func (st *stream) run(closing context.Context, conn *websocket.Conn) string {
	st.conn = conn
	ctx, end := context.WithCancelCause(context.Background())
	defer end(nil)
	stop := context.AfterFunc(closing, func() { end(errStopping) })
	defer stop()
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		end(st.read())
	}()
	// Pings are sent concurrently, because a client with a slow connection would otherwise be considered gone.
	go func() { end(st.ping(ctx)) }()
	err := st.write(ctx)
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	why, code := outcome(err)
	if code != 0 {
		text := websocket.FormatCloseMessage(code, err.Error())
		_ = conn.WriteControl(websocket.CloseMessage, text, time.Now().Add(time.Second)) // best effort
	}
	_ = conn.Close()
	<-gone
	return why
}

// outcome returns the reason why a stream ended. why is a word for metrics, and code is the close code for the client.
// The code is 0 if the client is gone.
func outcome(err error) (why string, code int) {
	switch {
	case errors.Is(err, errStopping):
		return "stopping", websocket.CloseServiceRestart
	case errors.Is(err, errUnauthorized):
		return "unauthorized", unauthorized
	case errors.Is(err, errMessage):
		return "message", websocket.CloseUnsupportedData
	case errors.Is(err, errSlow):
		return "slow", websocket.CloseTryAgainLater
	case errors.Is(err, errDoubt):
		return "doubt", websocket.CloseTryAgainLater
	}
	return "client", 0
}

// read returns when the client is gone or sends a message. Clients must not send messages.
func (st *stream) read() error {
	st.conn.SetReadLimit(1) // for a larger message, the library closes the connection with code 1009
	alive := func(string) error { return st.conn.SetReadDeadline(time.Now().Add(silence)) }
	st.conn.SetPongHandler(alive)
	if err := alive(""); err != nil {
		return err
	}
	_, _, err := st.conn.NextReader()
	if err == nil {
		err = errMessage
	}
	return err
}

// ping sends pings to the client until ctx is done.
func (st *stream) ping(ctx context.Context) error {
	ticks := time.NewTicker(st.pings)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticks.C:
			if err := st.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(writeLimit)); err != nil {
				return fmt.Errorf("%w: %w", errSlow, err)
			}
		}
	}
}

// write sends changes until ctx is done.
func (st *stream) write(ctx context.Context) error {
	rights := time.NewTimer(wait.Jitter(st.every, 0.1))
	defer rights.Stop()
	for {
		changed, begun := st.next(), time.Now()
		if err := st.flush(ctx); err != nil {
			return err
		}
		var bookmark <-chan time.Time
		if st.marks.sent {
			bookmark = time.After(bookmarks)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			if !await.Time(ctx, pace-time.Since(begun)) {
				return ctx.Err()
			}
		case <-bookmark:
			if err := st.bookmark(); err != nil {
				return err
			}
		case <-rights.C:
			if err := st.again(ctx); err != nil {
				return err
			}
			rights.Reset(wait.Jitter(st.every, 0.1))
		}
	}
}

// again repeats the reviews of the user's identity and rights. If the rights for a kind have changed, the stream sends
// the kind from the beginning. If only bindings for some Clusters have changed, it sends these Clusters.
func (st *stream) again(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rightsLimit)
	defer cancel()
	id, err := st.Authenticate(st.request)
	if err == nil {
		st.id = id
	} else if code := refusal.Of(err).Status().Code; code == http.StatusUnauthorized || code == http.StatusForbidden {
		return errUnauthorized
	} // the review itself failed, but the stream may continue for a while
	unknown := err != nil
	for _, k := range st.kinds {
		before := *k
		k.scope = k.feed.ask(ctx, st.may, st.workspaces(k), before.scope)
		k.reach = st.reviewReach(ctx, k)
		if !before.same(k.scope) || !before.reach.same(k.reach.scope) {
			k.restart()
		} else {
			k.compare(before.reach.names)
		}
		unknown = unknown || k.unknown || k.reach.unknown
	}
	if unmanaged := st.Unmanaged(ctx, st.id); unmanaged != st.marks.unmanaged {
		st.marks.unmanaged, st.marks.sent = unmanaged, true
	}
	if !unknown {
		st.certain = time.Now()
	} else if time.Since(st.certain) > st.doubt {
		return errDoubt
	}
	return nil
}

// restart makes the stream send a kind from the beginning.
func (k *watched) restart() {
	k.at, k.until, k.floor, k.sure, k.reset, k.recheck = 0, k.feed.end().seq, 0, 0, true, nil
}

func (st *stream) flush(ctx context.Context) error {
	for _, k := range st.kinds {
		for ctx.Err() == nil {
			more, err := st.flushSome(ctx, k)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
	if st.marks.sent && time.Since(st.marks.last) > bookmarks {
		return st.bookmark()
	}
	return nil
}

// flushSome sends some changes of a kind, and reports whether there may be more changes.
func (st *stream) flushSome(ctx context.Context, k *watched) (more bool, err error) {
	if k.reset {
		if err := st.send(message{Type: typeReset, Kind: k.feed.Resource}); err != nil {
			return false, err
		}
		k.reset = false
	}
	for _, name := range k.recheck {
		if err := st.sendObject(ctx, k, k.feed.get(name), true); err != nil {
			return false, err
		}
	}
	k.recheck = nil
	snapshot := k.at < k.until
	changed, known := k.feed.after(k.at, batch)
	if !known {
		k.restart()
		return true, nil
	}
	for _, o := range changed {
		k.at = o.seq
		said := o.content == nil && o.seq <= k.until || o.version > 0 && o.version <= k.floor
		if said || !st.query.asks(o.Namespace) {
			continue
		}
		if err := st.sendObject(ctx, k, o, !snapshot); err != nil {
			return false, err
		}
	}
	return len(changed) > 0, nil
}

// sendObject sends the part of a changed object that is visible to the user. If keep is set, the message is cached for
// other streams.
func (st *stream) sendObject(ctx context.Context, k *watched, o object, keep bool) error {
	shown, encode := k.reach.names[o.NamespacedName], k.feed.frame
	switch st.view(ctx, k, o) {
	case viewNothing:
		return nil
	case viewGone:
		o.uid = shown // the name may now belong to another Cluster
		return st.send(k.feed.gone(o))
	case viewPart:
		encode = k.feed.part
	case viewAll:
	}
	frame, err := encode(o, keep)
	if err != nil {
		return err
	}
	return st.sendFrame(frame)
}

// bookmark sends the stream's position to the client.
func (st *stream) bookmark() error {
	st.marks.sent, st.marks.last = false, time.Now()
	m := message{Type: typeBookmark, Unmanaged: st.marks.unmanaged}
	r := resume{Versions: map[string]uint64{}, Rights: st.digest()}
	for _, k := range st.kinds {
		if end := k.feed.end(); end.seq == k.at { // otherwise the version may belong to a change that has not been sent
			k.sure = max(k.sure, end.version)
		}
		r.Versions[k.feed.Resource] = k.sure
		if k.incomplete || k.reach.incomplete {
			m.Incomplete = append(m.Incomplete, k.feed.Resource)
		}
	}
	m.Resume = r.String()
	return st.sendUnmarked(m)
}

func (st *stream) send(m message) error {
	st.marks.sent = true
	return st.sendUnmarked(m)
}

func (st *stream) sendUnmarked(m message) error {
	data, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return st.written(st.deadline(), func() error { return st.conn.WriteMessage(websocket.TextMessage, data) })
}

func (st *stream) sendFrame(frame *websocket.PreparedMessage) error {
	st.marks.sent = true
	return st.written(st.deadline(), func() error { return st.conn.WritePreparedMessage(frame) })
}

func (st *stream) deadline() error { return st.conn.SetWriteDeadline(time.Now().Add(writeLimit)) }

func (st *stream) written(err error, write func() error) error {
	if err == nil {
		err = write()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errSlow, err)
	}
	return nil
}
