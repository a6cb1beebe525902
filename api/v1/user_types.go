// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// User is a person who signs in at the hub with a password, as the principal "local:<name>". Their password is not
// here: its hash is in the Secret drover-user-<name> of the manager's namespace, which "kubectl drover user" writes.
// With spec.principal it is a person who signs in elsewhere, and switches them off.
//
// Users may sign in if the manager's configuration has signIn.issuer. Rights come from bindings, and from the hub's own
// RBAC.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=drover,shortName=duser
// +kubebuilder:printcolumn:name="Principal",type=string,JSONPath=`.status.principal`
// +kubebuilder:printcolumn:name="Disabled",type=boolean,JSONPath=`.spec.disabled`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 63",message="metadata.name must be a DNS label: at most 63 lower-case letters, digits and dashes",fieldPath=.metadata
// +kubebuilder:validation:XValidation:rule="(has(self.spec) && has(self.spec.principal) ? self.spec.principal : \"\") == (has(oldSelf.spec) && has(oldSelf.spec.principal) ? oldSelf.spec.principal : \"\")",message="spec.principal cannot be changed: make another User",fieldPath=.spec.principal
type User struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name is what the user signs in with: a DNS label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec reports whether the user may sign in.
	// +optional
	Spec UserSpec `json:"spec,omitempty"`

	// status reports whether the user can sign in.
	//
	// Ready is True with the reasons PasswordSet, SignsInElsewhere and Disabled; False with PasswordMissing and
	// PasswordInvalid.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager, whose configuration needs signIn.issuer", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status UserStatus `json:"status,omitempty"`
}

// UserList is a list of Users.
//
// +kubebuilder:object:root=true
type UserList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []User `json:"items"`
}

// UserSpec reports whether a user may sign in.
type UserSpec struct {
	// principal is a user of an AuthProvider, "<provider>:<name>", for whom this User has no password: it can only refuse
	// them. It cannot be changed. Default: the User is the user local:<name>.
	// +optional
	// +kubebuilder:validation:MaxLength=192
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?:[a-z0-9_]([-a-z0-9._@+']*[a-z0-9_])?$")`,message="must be <provider>:<name>, such as github:alice, in lower case"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('hub:') && !self.startsWith('system:') && !self.startsWith('local:')",message="spec.principal must be a user of an AuthProvider"
	Principal string `json:"principal,omitempty"`

	// disabled refuses the user at once: no login, and no token that they have. Requests that are open end within 30 s.
	// Default false.
	// +optional
	Disabled bool `json:"disabled,omitempty"`
}

// UserStatus is what the manager knows of a user.
type UserStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// principal is the user's name in bindings: spec.principal, or "local:<name>".
	// +optional
	Principal string `json:"principal,omitempty"`

	// conditions: Ready, and Stalled when a person must act.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of a User's condition Ready.
const (
	// ReasonPasswordSet: the user can sign in.
	ReasonPasswordSet = "PasswordSet"
	// ReasonSignsInElsewhere: the user signs in at the AuthProvider of spec.principal.
	ReasonSignsInElsewhere = "SignsInElsewhere"
	// ReasonDisabled: the user is refused, as spec.disabled says.
	ReasonDisabled = "Disabled"
	// ReasonPasswordMissing: the Secret with the hash of the password does not exist.
	ReasonPasswordMissing = "PasswordMissing"
	// ReasonPasswordInvalid: the Secret does not hold a hash that the manager computes.
	ReasonPasswordInvalid = "PasswordInvalid"
)

// PrincipalPrefixLocal precedes the name of a User in the name of its principal. "hub" and "system" are reserved in the
// same place.
const PrincipalPrefixLocal = "local:"

// UserSecretPrefix precedes the name of a User in the name of the Secret with the hash of its password, and
// UserSecretKey is its key there. UserSecretUID is that of the User's UID: another User of the same name does not get
// the password.
const (
	UserSecretPrefix = "drover-user-"
	UserSecretKey    = "hash"
	UserSecretUID    = "uid"
)
