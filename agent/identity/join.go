// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/drover-dev/drover/internal/protocol"
)

// requestTimeout is the timeout for one request to one server.
const requestTimeout = 20 * time.Second

// maxMessage is the maximum size of a message from the hub, in bytes. Longer messages are truncated.
const maxMessage = 512

// refusedError is returned if the hub refuses to let the agent join. It never contains the join token.
type refusedError struct {
	// StatusCode is the 4xx status code of the hub's response.
	StatusCode int
	// RetryAfter is how long the hub asks the agent to wait, or 0 if the hub specifies no time.
	RetryAfter time.Duration
	// Refusal contains the hub's reason and advice for the user.
	Refusal protocol.Refusal
}

// Error returns the hub's reason, verbatim.
func (e *refusedError) Error() string {
	if e.Refusal.Reason == "" {
		return fmt.Sprintf("the hub refused to let the agent join: %d %s", e.StatusCode, http.StatusText(e.StatusCode))
	}
	return fmt.Sprintf("the hub refused to let the agent join: %s: %s", e.Refusal.Reason, e.Refusal.Message)
}

// Refused returns the minimum time that the hub asks the agent to wait. It implements link.Rejection.
func (e *refusedError) Refused() time.Duration { return e.RetryAfter }

// JoinInput is the input of a join.
type JoinInput struct {
	// Token is the join token.
	Token string
	// Key is the agent's key.
	Key ed25519.PrivateKey
	// ClusterUID is the UID of the kube-system namespace.
	ClusterUID string
	// Current is the Cluster that the agent already belongs to, and CurrentKey is the agent's key for that Cluster.
	// Current is zero if there is no such Cluster.
	Current    protocol.ClusterRef
	CurrentKey ed25519.PrivateKey
}

// Join sends a join request to each of the hub's servers in turn until one responds. It returns a *refusedError if the
// hub refuses the request. The token is sent only over connections whose certificate was verified with hub.Roots.
func Join(ctx context.Context, hub Endpoint, in JoinInput) (protocol.RegisterResponse, error) {
	public, ok := in.Key.Public().(ed25519.PublicKey)
	if !ok {
		return protocol.RegisterResponse{}, errors.New("join: the key is not Ed25519")
	}
	payload := protocol.ProofPayload(in.Token, in.ClusterUID)
	request := protocol.RegisterRequest{PublicKey: public, ClusterUID: in.ClusterUID, Proof: ed25519.Sign(in.Key, payload)}
	if in.Current.UID != "" {
		request.Current = &protocol.CurrentCluster{Cluster: in.Current, Proof: ed25519.Sign(in.CurrentKey, payload)}
	}
	body, err := json.Marshal(request)
	if err != nil {
		return protocol.RegisterResponse{}, fmt.Errorf("join: encode request: %w", err)
	}
	client := hub.client(requestTimeout)
	var errs []error
	for _, server := range hub.Servers {
		out, err := register(ctx, client, server, in.Token, body)
		if refused := (*refusedError)(nil); err == nil || errors.As(err, &refused) {
			return out, err
		}
		errs = append(errs, err)
	}
	return protocol.RegisterResponse{}, fmt.Errorf("join: %w", errors.Join(errs...))
}

func register(ctx context.Context, client *http.Client, server, token string, body []byte) (protocol.RegisterResponse,
	error) {
	var none protocol.RegisterResponse
	// A token is never sent unencrypted, regardless of the source of the address.
	if _, err := protocol.ServerURL(server); err != nil {
		return none, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, server+protocol.PathRegister, bytes.NewReader(body))
	if err != nil {
		return none, errors.New("the server's address is not a URL")
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return none, transportError(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, protocol.MaxBody))
	switch {
	case err != nil:
		return none, fmt.Errorf("read answer of %s: %w", server, err)
	case resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusCreated:
		return accepted(server, raw)
	case refusal(resp.StatusCode):
		return none, &refusedError{
			StatusCode: resp.StatusCode, RetryAfter: retryAfter(resp.Header.Get("Retry-After")),
			Refusal: readRefusal(raw, token),
		}
	}
	return none, fmt.Errorf("%s answered %s: check that %s is the hub's URL", server, resp.Status, protocol.EnvServer)
}

// refusal reports whether a status means that the hub refuses the token. Other statuses indicate a problem with the
// hub or with the connection to the hub.
func refusal(status int) bool {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict, http.StatusGone, http.StatusTooManyRequests:
		return true
	}
	return false
}

// accepted validates a response before it is stored.
func accepted(server string, raw []byte) (protocol.RegisterResponse, error) {
	var out protocol.RegisterResponse
	if err := json.Unmarshal(raw, &out); err != nil {
		return protocol.RegisterResponse{}, fmt.Errorf("decode answer of %s: %w", server, err)
	}
	c := out.Cluster
	if c.Namespace == "" || c.Name == "" || c.UID == "" || out.Audience == "" {
		return protocol.RegisterResponse{}, fmt.Errorf("the answer of %s names no cluster or audience", server)
	}
	if err := validateSettings(out.Settings); err != nil {
		return protocol.RegisterResponse{}, fmt.Errorf("settings in the answer of %s: %w", server, err)
	}
	return out, nil
}

func readRefusal(raw []byte, token string) protocol.Refusal {
	var r protocol.Refusal
	if json.Unmarshal(raw, &r) != nil {
		return protocol.Refusal{}
	}
	clean := func(s string) string {
		s = strings.ReplaceAll(s, token, "<join token>") // a token that a hub repeats in its response must not reach a log
		return protocol.Cut(s, maxMessage)
	}
	return protocol.Refusal{Reason: clean(r.Reason), Message: clean(r.Message)}
}

func retryAfter(value string) time.Duration {
	seconds, err := strconv.Atoi(value)
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// transportError returns an error that contains the cause and the host. It omits the query and the user that a URL may
// contain.
func transportError(err error) error {
	var failed *url.Error
	if !errors.As(err, &failed) {
		return err
	}
	if u, parseErr := url.Parse(failed.URL); parseErr == nil {
		return fmt.Errorf("post to %s: %w", u.Host, failed.Err)
	}
	return failed.Err
}
