// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/drover-dev/drover/internal/request"
)

// idHeader is the header with the ID of a request. kube-apiserver uses the same header. The caller may choose the ID.
// The ID also appears in the response, and in the audit log of the member's API server.
const idHeader = "Audit-Id"

// Record collects the data to be logged about a request. Its methods are safe for concurrent use. A nil Record is valid
// and records nothing.
type Record struct {
	log   *Log
	begun time.Time
	body  *capture // nil if bodies are not logged

	mu    sync.Mutex // guards the fields below
	event event
	info  request.Info
}

type recordKey struct{}

// From returns the record of the request that ctx belongs to, or nil if there is none.
func From(ctx context.Context) *Record {
	record, _ := ctx.Value(recordKey{}).(*Record)
	return record
}

// Identified records the sender of the request. If impersonated is not nil, it also records the user whom the sender
// impersonates.
func (r *Record) Identified(user User, impersonated *User) {
	r.change(func() {
		r.event.User, r.event.Impersonated, r.event.Claimed = user.clipped(), impersonated.clipped(), ""
	})
}

// change calls f with the lock held. It does nothing if the Record is nil.
func (r *Record) change(f func()) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// Claimed records the name that the sender claims to have, for example in a failed login. Identified replaces the claim
// with a confirmed identity.
func (r *Record) Claimed(name string) {
	r.change(func() { r.event.Claimed = clip(name, maxName) })
}

// About records what the request does and in which member. member is "namespace/name", or "local" for the hub.
func (r *Record) About(member string, info request.Info) {
	r.change(func() {
		r.event.Member, r.info, r.event.object = clip(member, 2*maxName), info, objectOf(info)
	})
}

// Refused records why the hub refused the request. The reason is a single word.
func (r *Record) Refused(reason string) {
	r.change(func() { r.event.Reason = clip(reason, maxName) })
}

// Wrap returns a handler that calls next and logs every request except probes.
func (l *Log) Wrap(next http.Handler) http.Handler {
	if !l.Enabled() {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/healthz" || r.URL.Path == "/readyz" {
			next.ServeHTTP(w, r)
			return
		}
		record := l.begin(r)
		w.Header().Set(idHeader, record.event.ID)
		r = r.WithContext(context.WithValue(r.Context(), recordKey{}, record))
		r.Header.Set(idHeader, record.event.ID)
		if l.settings.Level == LevelRequest && r.Body != nil && r.Body != http.NoBody {
			record.body = &capture{ReadCloser: r.Body}
			r.Body = record.body
		}
		recorder := request.NewRecorder(w)
		recorder.OnBegin(func(status int) { record.started(r, status) })
		defer func() { record.end(r, recorder.Status() == request.Aborted) }()
		next.ServeHTTP(recorder, r)
	})
}

func (l *Log) begin(r *http.Request) *Record {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		host = r.RemoteAddr
	}
	return &Record{log: l, begun: time.Now(), event: event{
		ID: idOf(r.Header),
		sender: sender{SourceIP: clip(host, maxName),
			UserAgent: jwt.ReplaceAllString(clip(r.UserAgent(), maxName), redacted)},
		Method: clip(r.Method, 16),
		URI:    URI(r.URL, request.Info{}),
	}}
}

// idOf returns the ID that the caller chose for a request. If that ID is missing or malformed, idOf returns a new ID.
func idOf(h http.Header) string {
	id := h.Get(idHeader)
	plain := func(c rune) bool {
		return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
	}
	if id != "" && len(id) <= 36 && !strings.ContainsFunc(id, func(c rune) bool { return !plain(c) }) {
		return id
	}
	var raw [16]byte
	rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

func (r *Record) started(u *http.Request, code int) {
	var line []byte
	r.mu.Lock()
	r.event.Code = code
	if r.info.Long && code < http.StatusBadRequest {
		line = r.line(u, stageStarted, false)
	}
	r.mu.Unlock()
	if line != nil {
		r.log.write(u.Context(), line)
	}
}

// end writes the last line about a request. It is called after the handler has returned or panicked.
func (r *Record) end(u *http.Request, aborted bool) {
	stage := stageComplete
	if aborted {
		stage = stageAborted
	}
	r.mu.Lock()
	line := r.line(u, stage, true)
	r.mu.Unlock()
	// The line is written even if the caller has disconnected.
	r.log.write(context.WithoutCancel(u.Context()), line)
}

// line formats a line of the log. The caller must hold the lock.
func (r *Record) line(u *http.Request, stage string, last bool) []byte {
	e := r.event
	e.Stage, e.Time = stage, time.Now().UTC()
	e.LatencyMS = float64(time.Since(r.begun).Microseconds()) / 1000
	if r.info.Path != "" {
		e.URI = URI(u.URL, r.info)
	}
	if last && r.body != nil {
		e.Body = Body(r.info, r.body.taken())
	}
	return e.line()
}

// capture copies a request body as it is read. It discards the copy if the body is larger than maxBody.
type capture struct {
	io.ReadCloser

	mu      sync.Mutex // guards the fields below
	content []byte
	tooLong bool
}

// Read implements io.Reader.
func (c *capture) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.tooLong:
	case len(c.content)+n > maxBody:
		c.content, c.tooLong = nil, true
	default:
		c.content = append(c.content, p[:n]...)
	}
	return n, err // not wrapped, because callers compare it with io.EOF
}

func (c *capture) taken() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.content
}

// clipped returns a copy of the user in which long names and lists are truncated.
func (u *User) clipped() *User {
	if u == nil {
		return nil
	}
	c := &User{Name: clip(u.Name, maxName), UID: clip(u.UID, maxName), Groups: clipAll(u.Groups)}
	for n, key := range slices.Sorted(maps.Keys(u.Extra)) {
		if n == maxExtras {
			break
		}
		if c.Extra == nil {
			c.Extra = map[string][]string{}
		}
		c.Extra[clip(key, maxName)] = clipAll(u.Extra[key])
	}
	return c
}

func clipAll(texts []string) []string {
	var out []string
	for _, text := range texts[:min(len(texts), maxGroups)] {
		out = append(out, clip(text, maxName))
	}
	if len(texts) > maxGroups {
		out = append(out, "…")
	}
	return out
}

// clip returns text as valid UTF-8, truncated to bound bytes. It replaces control characters, so that the text stays on
// one line.
func clip(text string, bound int) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) || unicode.Is(unicode.Cf, c) || c == '\u2028' || c == '\u2029' {
			return utf8.RuneError
		}
		return c
	}, strings.ToValidUTF8(text[:min(len(text), 4*bound)], "\uFFFD"))
	if len(text) <= bound {
		return text
	}
	return strings.ToValidUTF8(text[:bound], "") + "…"
}
