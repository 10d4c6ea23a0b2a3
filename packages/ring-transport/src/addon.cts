import path = require('node:path')
import loadAddon = require('@rdmakit/verbs/load-addon')

const addon: unknown = loadAddon('@rdmakit/ring-transport', path.dirname(__dirname), 'ring_transport')

export = addon
