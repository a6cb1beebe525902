// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// User represents a person who signs in to the hub with a password and has the principal name "local:<name>". The
// password hash is not part of the User. It is stored in the Secret drover-user-<name> in the manager's namespace. To
// set the password, use "kubectl drover user". If spec.principal is set, the User instead represents a person who signs
// in through an AuthProvider. To lock this person out, set spec.disabled to true.
//
// Users can sign in only if signIn.issuer is set in the manager's configuration. They get their rights from bindings
// and from the hub's own RBAC.
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
// +kubebuilder:validation:XValidation:rule="(has(self.spec) && has(self.spec.principal) ? self.spec.principal : \"\") == (has(oldSelf.spec) && has(oldSelf.spec.principal) ? oldSelf.spec.principal : \"\")",message="spec.principal cannot be changed: create another User",fieldPath=.spec.principal
type User struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object's metadata. The name is the login name and must be a DNS label.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec defines who the user is, and whether they are locked out.
	// +optional
	Spec UserSpec `json:"spec,omitzero"`

	// status reports whether the user can sign in.
	//
	// Ready is True with reason PasswordSet, SignsInElsewhere or Disabled, and False with reason PasswordMissing or
	// PasswordInvalid.
	// +optional
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "waiting for the Drover manager, which requires signIn.issuer in its configuration", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	Status UserStatus `json:"status,omitzero"`
}

// UserList is a list of Users.
//
// +kubebuilder:object:root=true
type UserList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []User `json:"items"`
}

// UserSpec defines who a user is, and whether they are locked out.
type UserSpec struct {
	// principal refers to a user of an AuthProvider, in the format "<provider>:<name>". A User that sets this field has no
	// password. Its only purpose is to lock out the principal. The field cannot be changed. By default, the User
	// represents the principal "local:<name>".
	// +optional
	// +kubebuilder:validation:MaxLength=192
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?:[a-z0-9_]([-a-z0-9._@+']*[a-z0-9_])?$")`,message="must be <provider>:<name>, such as github:alice, in lower case"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('hub:') && !self.startsWith('system:') && !self.startsWith('local:')",message="spec.principal must be a user of an AuthProvider"
	Principal string `json:"principal,omitempty"`

	// disabled locks the user out immediately: logins and all existing tokens are rejected, and requests in progress
	// end within 30 seconds. The default is false.
	// +optional
	Disabled bool `json:"disabled,omitempty"`
}

// UserStatus is the observed state of a User.
type UserStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// principal is the user's name in bindings. It is the value of spec.principal, or "local:<name>" if spec.principal is
	// not set.
	// +optional
	Principal string `json:"principal,omitempty"`

	// conditions contains Ready. It also contains Stalled while manual action is required.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=8
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Reasons of a User's Ready condition.
const (
	// ReasonPasswordSet means that the user can sign in.
	ReasonPasswordSet = "PasswordSet"
	// ReasonSignsInElsewhere means that the user signs in through the AuthProvider that spec.principal names.
	ReasonSignsInElsewhere = "SignsInElsewhere"
	// ReasonDisabled means that the user is locked out because spec.disabled is true.
	ReasonDisabled = "Disabled"
	// ReasonPasswordMissing means that the Secret with the password hash does not exist.
	ReasonPasswordMissing = "PasswordMissing"
	// ReasonPasswordInvalid means that the Secret with the password hash cannot be used, because the hash is invalid,
	// or because the Secret lacks the required label or belongs to an earlier User with the same name.
	ReasonPasswordInvalid = "PasswordInvalid"
)

// PrincipalPrefixLocal is the prefix of the principal names of Users. The prefixes "hub" and "system" are reserved too.
const PrincipalPrefixLocal = "local:"

// UserSecretPrefix, followed by the name of a User, is the name of the Secret with the password hash. UserSecretKey is
// the key of the hash in the Secret. UserSecretUID is the key of the User's UID. The UID is stored so that a new User
// with the same name does not inherit the password.
const (
	UserSecretPrefix = "drover-user-"
	UserSecretKey    = "hash"
	UserSecretUID    = "uid"
)
