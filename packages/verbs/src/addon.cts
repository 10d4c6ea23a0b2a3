import path = require('node:path')
import loadAddon = require('./load-addon.cjs')

const addon: unknown = loadAddon('@rdmakit/verbs', path.dirname(__dirname), 'verbs')

export = addon
