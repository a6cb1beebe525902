// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package set defines what one object of the hub puts into one member: a Set has an ID, a digest, perhaps an end, and
// its content.
//
// Hub and agent share it: the hub encodes objects and templates into a set, and the agent expands the templates
// whenever a namespace is added or removed, with or without the hub. It is pure: no client, no context, no clock, no
// logger.
package set

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// MaxSize is the most bytes that a set has as JSON.
const MaxSize = 8 << 20

// Kinds of sets: the first part of an ID.
const (
	// Guards has the policies that guard the other sets. A member has one such set, whose ID is its kind. An agent that
	// removes all sets removes it last.
	Guards = "guards"
	// Role has the ClusterRole of a RoleTemplate.
	Role = "role"
	// ClusterBinding has the ClusterRoleBinding of a ClusterRoleTemplateBinding.
	ClusterBinding = "crtb"
	// ProjectBinding has the RoleBindings of a ProjectRoleTemplateBinding.
	ProjectBinding = "prtb"
	// Project has the namespaces of a Project, with quota, limits and network policies.
	Project = "project"
	// Secrets has the copies of a Project's Secrets.
	Secrets = "secrets"
	// Direct has what the agent serves users by who come without the hub. A member has one such set, whose ID is its kind.
	Direct = "direct"
	// Plan has a Plan and the copies of its Secrets.
	Plan = "plan"
)

// ID returns the ID of the set of one kind that an object of the hub has.
func ID(kind, object string) string { return kind + "/" + object }

// Set is what one object of the hub puts into one member. It is immutable, and holds its content as JSON only: the hub
// has thousands of sets, and decoded each would take ten times the memory.
type Set struct {
	// ID names the object of the hub: "crtb/alice-owns-prod".
	ID string
	// Digest of all else: the SHA-256, in hex, of the JSON with an empty digest. That JSON is canonical: Go writes fields
	// in their order and the keys of maps sorted.
	Digest string
	// ExpiresAt is when the agent removes the set's objects, by its own clock. Nil for never.
	ExpiresAt *time.Time
	json      []byte
}

// encoded is the JSON of a set.
type encoded struct {
	ID        string     `json:"id"`
	Digest    string     `json:"digest"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	Content   Content    `json:"content"`
}

// Content is what a set holds.
type Content struct {
	// Objects are whole: they go into the member as they are.
	Objects []*unstructured.Unstructured `json:"objects,omitempty"`
	// PerNamespace is what each namespace of a project gets.
	PerNamespace *PerNamespace `json:"perNamespace,omitempty"`
}

// New makes a set. It fails for an ID that is not valid and for more than MaxSize.
func New(id string, expiresAt *time.Time, content Content) (*Set, error) {
	if expiresAt != nil {
		utc := expiresAt.UTC()
		expiresAt = &utc
	}
	raw, digest, err := encode(encoded{ID: id, ExpiresAt: expiresAt, Content: content})
	if err != nil {
		return nil, err
	}
	// the first one: an ID has no quotes
	whole := bytes.Replace(raw, []byte(`"digest":""`), []byte(`"digest":"`+digest+`"`), 1)
	return &Set{ID: id, Digest: digest, ExpiresAt: expiresAt, json: whole}, nil
}

// encode returns the JSON of a set without its digest, and the digest.
func encode(s encoded) (raw []byte, digest string, err error) {
	if !ValidID(s.ID) {
		return nil, "", fmt.Errorf("make set %q: the ID is not valid", s.ID[:min(len(s.ID), MaxID)])
	}
	s.Digest = ""
	if raw, err = json.Marshal(s); err != nil {
		return nil, "", fmt.Errorf("make set %s: %w", s.ID, err)
	}
	if len(raw) > MaxSize {
		return nil, "",
			fmt.Errorf("make set %s: it has %d bytes, at most %d are sent: split what it is made of", s.ID, len(raw), MaxSize)
	}
	sum := sha256.Sum256(raw)
	return raw, hex.EncodeToString(sum[:]), nil
}

// Parse reads the JSON of a set, which it keeps, and returns the content too. It fails if the digest does not match: if
// hub and agent differ in what a set can hold, they differ in the digest too. The error holds nothing of the content.
func Parse(raw []byte) (*Set, Content, error) {
	var s encoded
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, Content{}, errors.New("it cannot be read") // the cause may quote what is in it
	}
	_, digest, err := encode(s)
	if err != nil {
		return nil, Content{}, err
	}
	if digest != s.Digest {
		return nil, Content{}, fmt.Errorf("check set %s: its digest is another: hub and agent may differ in version", s.ID)
	}
	return &Set{ID: s.ID, Digest: digest, ExpiresAt: s.ExpiresAt, json: raw}, s.Content, nil
}

// JSON returns the set as it is sent and stored. It must not be changed.
func (s *Set) JSON() []byte { return s.json }

// MaxID is the most bytes that an ID has: a kind and the longest name that Kubernetes has.
const MaxID = 320

// validID is what DNS names and a kind before them make: no segment of a path could be empty or dots only.
var validID = regexp.MustCompile(`^[a-z]+(/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`)

// ValidID reports whether a set can have this ID: "kind/name", or "kind" for the only one of its kind.
func ValidID(id string) bool { return len(id) <= MaxID && validID.MatchString(id) }

// Object returns an object as it is put into a set: without the fields that only an API server sets.
func Object(object runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", object, err)
	}
	o := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	return o, nil
}
