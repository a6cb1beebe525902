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

// pathMembers is the path at which a replica serves its members. The response to a GET request is a stream of messages,
// one JSON object per line. Requests to a member's agent have the prefix "/v1/members/<namespace>/<name>".
const pathMembers = "/v1/members"

// queryHosts is set to "true" in a request for members if the requesting replica supports hosts. Replicas of the
// previous release do not support hosts: they would reject the name of a host as malformed, and lose track of all
// members.
const queryHosts = "hosts"

// Limits on the stream.
const (
	maxLine = 256 << 10 // in bytes; a report of 64 KiB can grow when it is encoded as JSON
	batch   = 256       // number of members sent between two flushes
)

// message is one line. Exactly one of its fields is set. Readers ignore lines in which they recognize no field.
type message struct {
	// Member is the replica's record of one member. It replaces the earlier record for that member.
	Member *members.Record `json:"member,omitempty"`
	// Complete is set once every member has been reported.
	Complete bool `json:"complete,omitempty"`
}

var errMalformed = errors.New("a line cannot be decoded; the replica may have another version")

func parse(line []byte) (message, error) {
	var m message
	if err := untrusted.JSON(line, &m, untrusted.Large().WithBytes(maxLine)); err != nil {
		return message{}, fmt.Errorf("%w: %w", errMalformed, err)
	}
	if m.Member == nil {
		return m, nil
	}
	name, _ := protocol.HostOf(m.Member.Name) // for a Cluster, the name is returned unchanged
	if len(validation.IsDNS1123Label(m.Member.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return message{}, fmt.Errorf("%w: it names no member", errMalformed)
	}
	m.Member.Bound()
	return m, nil
}

// writeMessage writes one line. A line that the other replica rejects would end the link for all members, and would end
// it again after each reconnect. Agents control most of the content of a record, so a record that would be too long is
// sent without the report.
func writeMessage(w io.Writer, m message) error {
	line, err := encode(m)
	if err == nil && len(line) > maxLine && m.Member != nil {
		short := *m.Member
		short.Report, short.ReportErr = nil, "the report is too long for the other replicas of the hub"
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

// encode returns a message as a line. It does not escape characters for HTML, because escaping replaces one byte with
// six, and every agent's report must fit in a line.
func encode(m message) ([]byte, error) {
	var line bytes.Buffer
	encoder := json.NewEncoder(&line)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(m)
	return line.Bytes(), err
}

// report sends the records of this replica's members, and then the changes to them, until the request ends or this
// replica stops.
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
			if writeMessage(w, message{Member: &records[i]}) != nil {
				return // the link has ended
			}
		}
		if len(records) == 0 && !complete {
			complete = true
			if writeMessage(w, message{Complete: true}) != nil {
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
			panic(http.ErrAbortHandler) // the response must not look like the normal end of the stream
		}
	}
}
