// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// State contains the hub's identity and its authority. It also contains the certificates for clients that trust only an
// earlier authority.
type State struct {
	// Identity identifies the hub in the tokens of its agents. It stays the same when the authority changes or when
	// the hub moves to another cluster.
	Identity string
	// Active is the authority that signs the hub's certificates.
	Active KeyPair
	// Bridges contains PEM-encoded certificates, newest first. Each was issued to an authority by the authority that it
	// replaced. The hub presents them after its own certificate, so that a client that trusts only a replaced authority
	// can verify Active.
	Bridges []byte
	// Old is the PEM-encoded certificate of the authority that Active replaced. This certificate is still announced to
	// agents.
	Old []byte
	// Changed is the time when Active last changed. It is zero if Active has never changed.
	Changed time.Time
}

// Timing of the replacement of an authority.
const (
	// RenewBefore is how long before its expiry an authority is replaced automatically. During this time, users can add
	// the next authority to their kubeconfigs.
	RenewBefore = 365 * 24 * time.Hour
	// RetireAfter is how long a replaced authority is still announced to agents.
	RetireAfter = 30 * 24 * time.Hour
	// RevokePatience is how long a replaced authority remains trusted while connected members have not confirmed the new
	// one. Without this limit, a member that never confirms the new authority could keep a stolen key valid.
	RevokePatience = 10 * time.Minute
)

// maxBridges is the maximum number of changes that a client may miss and still be able to connect. Each change adds
// half a kilobyte to each handshake.
const maxBridges = 8

// Input contains everything that the decision about the next step depends on.
type Input struct {
	State State
	// Requested is true if a user has requested a change that has not been made yet.
	Requested bool
	// Revoked is true if a user has revoked the old authority, for example because its key was stolen.
	Revoked bool
	// Missing contains the names of connected members that have not confirmed the announced bundle.
	Missing []string
	Now     time.Time
}

// Step is one step in the life cycle of an authority.
type Step string

const (
	// StepWait means that nothing is changed.
	StepWait Step = "Wait"
	// StepCreate means that the first authority is created.
	StepCreate Step = "Create"
	// StepChange means that another authority is created. The new authority signs certificates from then on. The previous
	// authority cross-signs the new one and is still announced.
	StepChange Step = "Change"
	// StepRetire means that the old authority is no longer announced, and that expired bridges are dropped.
	StepRetire Step = "Retire"
	// StepRevoke means that the old authority is no longer announced, and that all bridges are dropped. After that,
	// clients that trust only the old authority reject the hub's certificate.
	StepRevoke Step = "Revoke"
)

// Decision contains the next step, the reason for it, and the time of the next decision. If that time is zero, the next
// decision is due only after something has changed.
type Decision struct {
	Step   Step
	Why    string
	LookAt time.Time
}

// Decide returns the next step. It has no side effects.
func Decide(in Input) (Decision, error) {
	if len(in.State.Active.Cert) == 0 {
		return Decision{Step: StepCreate, Why: "there is no authority yet"}, nil
	}
	active, err := tls.X509KeyPair(in.State.Active.Cert, in.State.Active.Key)
	if err != nil {
		return Decision{}, fmt.Errorf("read active CA: %w", err)
	}
	bridges, err := certificates(in.State.Bridges)
	if err != nil {
		return Decision{}, fmt.Errorf("read cross-signed CAs: %w", err)
	}
	renewAt := active.Leaf.NotAfter.Add(-RenewBefore)
	switch {
	case in.Requested || !in.Now.Before(renewAt):
		return decideChange(in, active.Leaf), nil
	case in.Revoked && len(in.State.Old)+len(bridges) > 0:
		return decideRevocation(in), nil
	}
	return decideRetirement(in, bridges, renewAt), nil
}

func decideChange(in Input, active *x509.Certificate) Decision {
	switch {
	case !mayVouch(active):
		return Decision{Step: StepWait,
			Why: "the authority must be changed but cannot sign another one, because its certificate allows no authority " +
				"below it. See \"When the CA's key is lost\" in docs/operations/certificates.md"}
	case in.Requested:
		return Decision{Step: StepChange, Why: "a change was requested; " + until(active)}
	}
	return Decision{Step: StepChange, Why: "the authority is in its last year; " + until(active)}
}

// until describes how long clients that trust only the replaced authority can still connect.
func until(active *x509.Certificate) string {
	return "clients that trust only the old authority verify the hub until " + active.NotAfter.UTC().Format(time.RFC3339) +
		": give them the new one from /v1/cacerts by then"
}

func decideRevocation(in Input) Decision {
	patience := in.State.Changed.Add(RevokePatience)
	if len(in.Missing) > 0 && in.Now.Before(patience) {
		return Decision{Step: StepWait, Why: missingMessage(in.Missing), LookAt: patience}
	}
	return Decision{Step: StepRevoke,
		Why: "it was requested; clients that trust only the old authority no longer verify the hub"}
}

func decideRetirement(in Input, bridges []*x509.Certificate, renewAt time.Time) Decision {
	wait := Decision{Step: StepWait, Why: "the authority is valid", LookAt: renewAt}
	if len(in.State.Old) > 0 {
		retireAt := in.State.Changed.Add(RetireAfter)
		if !in.Now.Before(retireAt) {
			return Decision{Step: StepRetire, Why: "the old authority was replaced long ago"}
		}
		wait.Why, wait.LookAt = "the old authority is still announced", earlier(retireAt, wait.LookAt)
	}
	for _, bridge := range bridges {
		if !in.Now.Before(bridge.NotAfter) {
			return Decision{Step: StepRetire, Why: "a replaced authority has ended"}
		}
		wait.LookAt = earlier(bridge.NotAfter, wait.LookAt)
	}
	return wait
}

func missingMessage(missing []string) string {
	const most = 5
	names := slices.Sorted(slices.Values(missing))
	if len(names) > most {
		return fmt.Sprintf("waiting for %d connected member(s) to learn the new authority, among them %v", len(names),
			names[:most])
	}
	return fmt.Sprintf("waiting for %d connected member(s) to learn the new authority: %v", len(names), names)
}

// Apply applies a step to a state and returns the new state. The identity stays the same.
func Apply(s State, step Step, now time.Time) (State, error) {
	next, err := apply(s, step, now)
	next.Identity = s.Identity
	return next, err
}

func apply(s State, step Step, now time.Time) (State, error) {
	switch step {
	case StepWait:
		return s, nil
	case StepRetire:
		bridges, err := lasting(s.Bridges, now)
		return State{Active: s.Active, Bridges: bridges, Changed: s.Changed}, err
	case StepRevoke:
		return State{Active: s.Active, Changed: s.Changed}, nil
	case StepCreate:
		pair, err := NewAuthority(now)
		return State{Active: pair}, err
	case StepChange:
		return change(s, now)
	}
	return s, fmt.Errorf("unknown step %q", step)
}

func change(s State, now time.Time) (State, error) {
	next, err := NewAuthority(now)
	if err != nil {
		return s, err
	}
	bridge, err := CrossSign(s.Active, next, now)
	if err != nil {
		return s, err
	}
	bridges, err := lasting(slices.Concat(bridge, s.Bridges), now)
	if err != nil {
		return s, err
	}
	return State{Active: next, Bridges: bridges, Old: s.Active.Cert, Changed: now}, nil
}

// lasting returns the newest bridges that have not expired, up to maxBridges.
func lasting(bridges []byte, now time.Time) ([]byte, error) {
	certs, err := certificates(bridges)
	if err != nil {
		return nil, fmt.Errorf("read cross-signed CAs: %w", err)
	}
	certs = slices.DeleteFunc(certs, func(c *x509.Certificate) bool { return !now.Before(c.NotAfter) })
	var kept []byte
	for _, cert := range certs[:min(len(certs), maxBridges)] {
		kept = append(kept, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})...)
	}
	return kept, nil
}

// Bundle returns the PEM-encoded certificates that agents should trust. The active authority comes first, and then the
// old one.
func (s State) Bundle() []byte {
	return slices.Concat(s.Active.Cert, s.Old)
}

// WithBridges appends the bridges to the chain of a certificate from the active authority.
func (s State) WithBridges(cert *tls.Certificate) (*tls.Certificate, error) {
	bridges, err := certificates(s.Bridges)
	if err != nil {
		return nil, fmt.Errorf("read cross-signed CAs: %w", err)
	}
	for _, bridge := range bridges {
		cert.Certificate = append(cert.Certificate, bridge.Raw)
	}
	return cert, nil
}

// certificates parses PEM certificates. The input may be empty.
func certificates(raw []byte) ([]*x509.Certificate, error) {
	var certs []*x509.Certificate
	for len(bytes.TrimSpace(raw)) > 0 {
		var block *pem.Block
		if block, raw = pem.Decode(raw); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("want certificates in PEM and nothing else")
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		certs = append(certs, cert)
	}
	return certs, nil
}
