// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"bytes"
	"encoding/json"
	"time"

	"github.com/drover-dev/drover/internal/request"
)

// Stages of a request. The first two have the same names as in kube-apiserver.
const (
	// stageStarted is the start of the response to a long-running request.
	stageStarted = "ResponseStarted"
	// stageComplete is the end of a request that got a response.
	stageComplete = "ResponseComplete"
	// stageAborted is the end of a request without a response, usually because the caller has disconnected.
	stageAborted = "Aborted"
	// stageDropped marks a line with the number of lines that were dropped because the buffer was full.
	stageDropped = "Dropped"
)

// User is the sender of a request, or the user whom the sender impersonates.
type User struct {
	Name   string              `json:"name"`
	UID    string              `json:"uid,omitempty"`
	Groups []string            `json:"groups,omitempty"`
	Extra  map[string][]string `json:"extra,omitempty"`
}

// Limits on the number of groups and extra fields that are logged for a User.
const (
	maxGroups = 64
	maxExtras = 16
)

type object struct {
	Verb        string `json:"verb,omitempty"`
	APIGroup    string `json:"apiGroup,omitempty"`
	Resource    string `json:"resource,omitempty"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
}

func objectOf(info request.Info) object {
	return object{
		Verb: info.Verb, APIGroup: clip(info.Group, maxName), Resource: clip(info.Resource, maxName),
		Subresource: clip(info.Subresource, maxName), Namespace: clip(info.Namespace, maxName),
		Name: clip(info.Name, maxName),
	}
}

type sender struct {
	SourceIP  string `json:"sourceIP,omitempty"`
	UserAgent string `json:"userAgent,omitempty"`
}

type outcome struct {
	Code      int     `json:"code,omitempty"`
	Reason    string  `json:"reason,omitempty"` // why the hub refused the request, as in a Status
	LatencyMS float64 `json:"latencyMs"`
	Dropped   int64   `json:"dropped,omitempty"` // number of lines
}

// event is a line of the log.
type event struct {
	Time         time.Time `json:"time"`
	ID           string    `json:"id,omitempty"`
	Stage        string    `json:"stage"`
	User         *User     `json:"user,omitempty"`
	Impersonated *User     `json:"impersonatedUser,omitempty"`
	Claimed      string    `json:"claimedUser,omitempty"`
	sender
	Member string `json:"member,omitempty"` // "namespace/name", or "local" for the hub itself
	object
	Method string `json:"method,omitempty"`
	URI    string `json:"uri,omitempty"`
	outcome
	Body json.RawMessage `json:"body,omitempty"`
}

// line returns the event as JSON, followed by a newline. The JSON itself contains no newline. If the line would be
// longer than maxLine, the body and the users' groups are omitted.
func (e *event) line() []byte {
	out := encode(e)
	if len(out) > maxLine {
		short := *e
		short.Body, short.User, short.Impersonated = nil, short.User.nameOnly(), short.Impersonated.nameOnly()
		out = encode(&short)
	}
	return out
}

func (u *User) nameOnly() *User {
	if u == nil {
		return nil
	}
	return &User{Name: u.Name, UID: u.UID, Groups: []string{"…"}}
}

func encode(e *event) []byte {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	if encoder.Encode(e) != nil { // strings, numbers and JSON that was marshaled here can always be encoded
		return nil
	}
	return out.Bytes()
}
