"""Sign-in to the admin by OpenID Connect, beside passwords. Authlib speaks the protocol; this
package decides who may enter, and with which roles."""
