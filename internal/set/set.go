// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package set defines a Set: the part of an object on the hub that is delivered to one member.
//
// A Set has an ID, a digest, content, and optionally an expiry time. The hub and the agent share this package. The hub
// encodes objects and templates into a set. The agent expands the templates whenever a namespace is added or removed,
// even while it has no connection to the hub. The package has no side effects and uses no client, context, clock or
// logger.
package set

import (
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	v1 "github.com/drover-dev/drover/api/v1"
)

// MaxSize is the maximum size of a set's JSON, in bytes.
const MaxSize = 8 << 20

// Kinds of sets. The kind is the first part of an ID.
const (
	// Guards is the set with the policies that protect other sets. A member has only one Guards set, with the ID "guards".
	// An agent that removes all sets removes this set last.
	Guards = "guards"
	// Role is the set with the ClusterRole of a RoleTemplate.
	Role = "role"
	// ClusterBinding is the set with the ClusterRoleBinding of a ClusterRoleTemplateBinding.
	ClusterBinding = "crtb"
	// ProjectBinding is the set with the RoleBindings of a ProjectRoleTemplateBinding.
	ProjectBinding = "prtb"
	// Project is the set with the namespaces of a Project and the quotas, limits and network policies of these
	// namespaces.
	Project = "project"
	// Secrets is the set with the copies of a Project's Secrets.
	Secrets = "secrets"
	// Direct is the set with the data that the agent needs for direct access. A member has only one Direct set, with the
	// ID "direct".
	Direct = "direct"
	// Plan is the set with a Plan and the copies of its Secrets.
	Plan = "plan"
	// Baseline is the set with the objects of a Baseline, and the ClusterRoleBinding that grants the rights to apply
	// them.
	Baseline = "baseline"
	// Values is the set with the values of a Cluster that Baselines refer to. A member has only one Values set. The ID
	// of the set is "values".
	Values = "values"
)

// ID returns the ID of an object's set of the given kind.
func ID(kind, object string) string { return kind + "/" + object }

// Set is the part of an object on the hub that is delivered to one member. It is immutable. It keeps its content only
// as JSON, because the hub has thousands of sets, and a decoded set would take ten times as much memory.
type Set struct {
	// ID identifies the object on the hub, for example "crtb/alice-owns-prod".
	ID string
	// Digest is the digest of all other fields. It is the hexadecimal SHA-256 of the JSON with an empty digest. This
	// JSON is canonical, because Go writes fields in declaration order and sorts the keys of maps.
	Digest string
	// ExpiresAt is the time when the agent, according to its own clock, removes the set's objects. If it is nil, the set
	// never expires.
	ExpiresAt *time.Time
	// Baseline describes the content of a set with a Baseline. It is nil for other sets.
	Baseline *BaselineOutline
	json     []byte
}

// BaselineOutline is the part of a Baseline's content that is compared with the reports of agents.
type BaselineOutline struct {
	// Revision identifies the objects and the role template, and Objects is the number of objects.
	Revision string
	Objects  int32
}

func outline(content *BaselineContent) *BaselineOutline {
	if content == nil {
		return nil
	}
	return &BaselineOutline{Revision: content.Revision, Objects: int32(len(content.Objects))}
}

// encoded is the JSON of a set.
type encoded struct {
	ID        string     `json:"id"`
	Digest    string     `json:"digest"`
	ExpiresAt *time.Time `json:"expiresAt,omitempty"`
	Content   Content    `json:"content"`
}

// Content is the content of a set.
type Content struct {
	// Objects are complete objects. They are applied unchanged.
	Objects []*unstructured.Unstructured `json:"objects,omitempty"`
	// PerNamespace is the content for each namespace of a project.
	PerNamespace *PerNamespace `json:"perNamespace,omitempty"`
	// Baseline contains objects that the agent applies as the Baseline's own user.
	Baseline *BaselineContent `json:"baseline,omitempty"`
	// Values contains the values that replace references in the objects of Baselines, by the name in the reference.
	Values map[string]string `json:"values,omitempty"`
}

// New returns a set. It fails if the ID is invalid or the set is larger than MaxSize.
func New(id string, expiresAt *time.Time, content Content) (*Set, error) {
	if expiresAt != nil {
		utc := expiresAt.UTC()
		expiresAt = &utc
	}
	raw, digest, err := encode(encoded{ID: id, ExpiresAt: expiresAt, Content: content})
	if err != nil {
		return nil, err
	}
	// The first match is always the digest, because an ID contains no quotes.
	whole := bytes.Replace(raw, []byte(`"digest":""`), []byte(`"digest":"`+digest+`"`), 1)
	return &Set{
		ID: id, Digest: digest, ExpiresAt: expiresAt, Baseline: outline(content.Baseline), json: whole,
	}, nil
}

// encode returns the JSON of a set and the set's digest. The JSON does not contain the digest.
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
			fmt.Errorf("make set %s: it has %d bytes, and the maximum is %d: split the object it is made from", s.ID, len(raw),
				MaxSize)
	}
	sum := sha256.Sum256(raw)
	return raw, hex.EncodeToString(sum[:]), nil
}

// Parse decodes the JSON of a set and returns the set and its content. The set keeps a reference to the raw argument.
// Parse returns an error if the digest does not match, for example because the hub and the agent support different
// fields of a set. The error does not contain any part of the content.
func Parse(raw []byte) (*Set, Content, error) {
	var s encoded
	if err := json.Unmarshal(raw, &s); err != nil {
		return nil, Content{}, errors.New("it cannot be read") // the cause may quote the content
	}
	_, digest, err := encode(s)
	if err != nil {
		return nil, Content{}, err
	}
	if digest != s.Digest {
		return nil, Content{}, fmt.Errorf("check set %s: its digest does not match: hub and agent may differ in version",
			s.ID)
	}
	return &Set{
		ID: s.ID, Digest: digest, ExpiresAt: s.ExpiresAt, Baseline: outline(s.Content.Baseline), json: raw,
	}, s.Content, nil
}

// JSON returns the set in the form in which it is sent and stored. The caller must not change it.
func (s *Set) JSON() []byte { return s.json }

// MaxID is the maximum length of an ID, in bytes. It leaves room for a kind and the longest name in Kubernetes.
const MaxID = 320

// validID matches a kind, optionally followed by a slash and a DNS name. IDs are used in URL paths, so no segment can
// be empty or consist only of dots.
var validID = regexp.MustCompile(`^[a-z]+(/[a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$`)

// ValidID reports whether a set can have the given ID: "kind/name", or only "kind" if a member has only one set of that
// kind.
func ValidID(id string) bool { return len(id) <= MaxID && validID.MatchString(id) }

// Object converts an object into the format used in sets. It removes the fields that only an API server sets.
func Object(object runtime.Object) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("convert %T: %w", object, err)
	}
	o := &unstructured.Unstructured{Object: fields}
	unstructured.RemoveNestedField(o.Object, "metadata", "creationTimestamp")
	return o, nil
}

const (
	maxLabel = 63
	// hashLength is the number of characters in a hash. In base 32, 12 characters represent 60 bits.
	hashLength = 12
)

// Label returns the value of the label cluster.drover.dev/set for a set's ID. In this value, "." replaces "/". If the
// value is too long for a label, it is truncated. It then starts with "kind-" instead of "kind." and ends in a hash of
// the ID. As a result, users cannot choose an ID that has the same label as another ID.
func Label(id string) string {
	value := strings.ReplaceAll(id, "/", ".")
	if len(value) <= maxLabel {
		return value
	}
	sum := sha256.Sum256([]byte(id))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:hashLength]
	return strings.TrimRight(strings.Replace(id, "/", "-", 1)[:maxLabel-hashLength-1], "-_.") + "-" + hash
}

// BaselineContent is the content of a Baseline for a member. All members of the Baseline share it.
type BaselineContent struct {
	// Name is the name of the Baseline. The agent derives the Baseline's user and label from it.
	Name string `json:"name"`
	// Revision identifies the objects and the role template.
	Revision string `json:"revision"`
	// Objects are complete objects in the order of their sources. They remain JSON, because a decoded object takes ten
	// times as much memory.
	Objects []json.RawMessage `json:"objects"`
	// Drift, Conflicts and DeletionPolicy are copied from the spec.
	Drift          v1.DriftPolicy            `json:"drift,omitempty"`
	Conflicts      v1.ConflictPolicy         `json:"conflicts,omitempty"`
	DeletionPolicy v1.BaselineDeletionPolicy `json:"deletionPolicy,omitempty"`
	// HealthSeconds is how long an object may take to become healthy.
	HealthSeconds int64 `json:"healthSeconds,omitempty"`
}
