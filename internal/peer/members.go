// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package peer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/drover-dev/drover/internal/members"
	"github.com/drover-dev/drover/internal/protocol"
	"github.com/drover-dev/drover/internal/untrusted"
)

// pathMembers answers GET with a stream of messages, one JSON object a line. Below it are the members themselves:
// "/v1/members/<namespace>/<name>" is the prefix of what is sent to their agents.
const pathMembers = "/v1/members"

// queryHosts in a request for members says that the replica that asks knows hosts, by the value "true". One of a
// release before does not: the name of a host is malformed to it, and it would lose all members.
const queryHosts = "hosts"

// Bounds of the stream.
const (
	maxLine = 256 << 10 // bytes: a report of 64 KiB, as it may grow in JSON, and what is around it
	batch   = 256       // members between two flushes
)

// message is one line: exactly one of its fields is set. A reader ignores a line of which it knows none.
type message struct {
	// Member is what the replica knows of one member. It replaces what was reported of the member before.
	Member *members.Record `json:"member,omitempty"`
	// Complete reports whether every member has been reported once.
	Complete bool `json:"complete,omitempty"`
}

var errMalformed = errors.New("a line cannot be understood: the replica may be of another version")

// parse reads a line and cuts it to size.
func parse(line []byte) (message, error) {
	var m message
	if err := untrusted.JSON(line, &m, untrusted.Large().WithBytes(maxLine)); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if m.Member == nil {
		return m, nil
	}
	name, _ := protocol.HostOf(m.Member.Name) // of a Cluster as it is
	if len(validation.IsDNS1123Label(m.Member.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return message{}, fmt.Errorf("%w: it names no member", errMalformed)
	}
	m.Member.Bound()
	return m, nil
}

// tell writes one line. A line that the other replica does not take would end the link, for all members here, and again
// whenever it comes back. An agent chooses most of its record, so one that would become too long goes without the
// report.
func tell(w io.Writer, m message) error {
	line, err := encode(m)
	if err == nil && len(line) > maxLine && m.Member != nil {
		short := *m.Member
		short.Report, short.ReportErr = nil, "the report is too long to be told to other replicas of the hub"
		short.Tunnels = slices.Clone(short.Tunnels)
		short.Bound()
		line, err = encode(message{Member: &short})
	}
	if err != nil {
		return err
	}
	_, err = w.Write(line)
	return err
}

// encode returns a message as a line. Without the escapes for HTML, which make six bytes of one, any report of an agent
// fits.
func encode(m message) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(m)
	return line.Bytes(), err
}

// report responds with what is known of the members here, and then with what changes, until the request or this replica
// ends.
func (n *Network) report(w http.ResponseWriter, r *http.Request) {
	feed := n.options.Members.Feed()
	defer feed.Close()
	w.Header().Set("Content-Type", "application/jsonl")
	control := http.NewResponseController(w)
	complete, hosts := false, r.URL.Query().Get(queryHosts) == "true"
	for {
		records := feed.Take(batch)
		for i := range records {
			if _, isHost := protocol.HostOf(records[i].Name); isHost && !hosts {
				continue
			}
			if tell(w, message{Member: &records[i]}) != nil {
				return // the link has ended
			}
		}
		if len(records) == 0 && !complete {
			complete = true
			if tell(w, message{Complete: true}) != nil {
				return
			}
		}
		if control.Flush() != nil {
			return
		}
		if len(records) > 0 {
			continue
		}
		select {
		case <-feed.Wake():
		case <-r.Context().Done():
			return
		case <-n.ctx.Done():
			panic(http.ErrAbortHandler) // not an end of the members
		}
	}
}
